"""Owners of functions: from a plugin's hook or its package, as callers and operators see them."""

import importlib.metadata

import pytest
from click.testing import CliRunner

from remote_udf.functions import FunctionSpec
from udf_server.base.errors import PluginError, PluginImportError
from udf_server.base.metrics import ServerMetrics
from udf_server.commands.cli import main
from udf_server.hosting.registry import Registry
from udf_server.page.catalogue import catalogue
from udf_server.plugins.loading import OWNER_LIMIT, build_plugin_manager, load_functions, owner_of_package

ONE = """
import udf_server as udf

@udf.scalar
def one() -> int:
    return 1
"""
OWNER = """
@udf.hookimpl
def udf_owner():
    return {owner!r}
"""
FUNCTIONS = """
@udf.hookimpl
def udf_functions():
    return [one]
"""


def owner_of(path):
    ((_, function),) = load_functions(build_plugin_manager([path], entry_points=False))
    return function.spec.owner


def metadata(tmp_path, *lines):
    folder = tmp_path / "atlas-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", "Name: atlas", "Version: 1.0", *lines, ""]))
    return importlib.metadata.PathDistribution(folder)


@pytest.mark.parametrize("functions", ["", FUNCTIONS], ids=["without the hook of functions", "with it"])
def test_a_plugin_says_who_owns_it(plugin, functions):
    assert owner_of(plugin(ONE + functions + OWNER.format(owner="Geo team\n <geo@acme.example>"))) == (
        "Geo team <geo@acme.example>"
    )


def test_a_plugin_that_says_nothing_has_no_owner(plugin):
    assert owner_of(plugin(ONE)) == ""


def test_an_owner_is_text_of_one_line_and_not_longer_than_a_limit(plugin):
    assert owner_of(plugin(ONE + OWNER.format(owner="x" * 999))) == "x" * OWNER_LIMIT
    with pytest.raises(PluginError, match=r"udf_owner returned 7, expected text"):
        owner_of(plugin(ONE + OWNER.format(owner=7), "seven.py"))
    with pytest.raises(PluginImportError, match="KeyError"):
        owner_of(plugin(ONE + "\n@udf.hookimpl\ndef udf_owner():\n    raise KeyError\n", "raising.py"))


@pytest.mark.parametrize(
    ("lines", "owner"),
    [
        ([], ""),
        (["Author: Ada Lovelace"], "Ada Lovelace"),
        (["Author-email: Ada <ada@acme.example>, team@acme.example"], "Ada <ada@acme.example>, team@acme.example"),
        (["Author: Ada", "Maintainer-email: \"Geo, the team\" <geo@acme.example>"], "Geo, the team <geo@acme.example>"),
        (["Author: Ada", "Project-URL: Changes, https://a.example/c"], "Ada"),
        (
            ["Author: Ada", "Project-URL: Homepage, https://a.example", "Project-URL: Issues, https://a.example/i"],
            "Ada, https://a.example/i",
        ),
        (["Project-URL: Support, https://a.example/s"], "https://a.example/s"),
    ],
)  # fmt: skip
def test_a_package_s_metadata_names_people_and_where_to_ask(tmp_path, lines, owner):
    assert owner_of_package(metadata(tmp_path, *lines)) == owner


def test_an_installed_plugin_is_owned_by_whom_its_package_names(tmp_path, monkeypatch):
    metadata(tmp_path, "Author: Ada")
    (tmp_path / "atlas-1.0.dist-info" / "entry_points.txt").write_text("[udf_server]\natlas = atlas_owned\n")
    (tmp_path / "atlas_owned.py").write_text(ONE)
    monkeypatch.syspath_prepend(str(tmp_path))
    owners = {name: function.spec.owner for name, function in load_functions(build_plugin_manager())}
    assert owners["atlas"] == "Ada"


def test_an_owner_is_in_the_list_the_description_the_catalogue_and_what_callers_get(plugin):
    path = plugin(ONE + OWNER.format(owner="Geo team"))
    command = ["--plugin", path, "--no-entry-points"]
    head, line = CliRunner().invoke(main, ["functions", *command]).output.splitlines()
    assert head.split() == ["FUNCTION", "VERSION", "PLUGIN", "OWNER"]
    assert line.endswith("  Geo team")
    assert "owner:         Geo team\n" in CliRunner().invoke(main, ["describe", "one", *command]).output
    registry = Registry(load_functions(build_plugin_manager([path], entry_points=False)))
    found = catalogue(registry, ServerMetrics(), may_see=lambda name: True, ready=True, try_calls=False)
    assert found["functions"][0]["facts"]["owner"] == "Geo team"
    spec = registry.find("one").spec
    assert FunctionSpec.from_proto(spec.to_proto()).owner == "Geo team"


def test_an_owner_does_not_change_what_a_plan_is_pinned_to(plugin):
    specs = [
        function.spec
        for path in (plugin(ONE), plugin(ONE + OWNER.format(owner="Geo"), "owned.py"))
        for _, function in load_functions(build_plugin_manager([path], entry_points=False))
    ]
    assert specs[0].fingerprint == specs[1].fingerprint


def test_a_list_without_owners_has_no_column_of_them(plugin):
    output = CliRunner().invoke(main, ["functions", "--plugin", plugin(ONE), "--no-entry-points"]).output
    assert "OWNER" not in output
