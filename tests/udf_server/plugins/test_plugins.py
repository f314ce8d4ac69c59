"""Plugins: entry points, modules, files, the block list, and what stops the start."""

import re
import sys

import pytest

from udf_server.base.errors import DeclarationError, FunctionClash, PluginError, PluginImportError
from udf_server.hosting.registry import Registry
from udf_server.plugins.loading import build_plugin_manager, load_functions

ONE = """
import udf_server as udf

@udf.scalar
def one() -> int:
    return 1
"""
PARTS = "import udf_server as udf\n"
HOOK = """

@udf.hookimpl
def udf_functions():
    return [one]
"""


def loaded(*modules, blocked=(), entry_points=False):
    manager = build_plugin_manager(modules, blocked, entry_points=entry_points)
    return sorted((name, function.spec.key) for name, function in load_functions(manager))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a distribution with a module and an entry point, as pip would lay it out."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(distribution, module, text, *, entry=None, group="udf_server"):
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{entry or distribution} = {module}\n")

    yield install
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def test_an_installed_package_is_found_by_its_entry_point(package):
    package("atlas", "atlas_udfs", ONE + HOOK)
    assert ("atlas", "one@1") in loaded(entry_points=True)


def test_a_module_without_the_hook_offers_its_functions(package):
    package("atlas", "atlas_udfs", ONE)
    assert ("atlas", "one@1") in loaded(entry_points=True)


def test_entry_points_of_other_groups_are_left_alone(package):
    package("atlas", "atlas_udfs", "raise RuntimeError", group="something_else")
    assert ("atlas", "one@1") not in loaded(entry_points=True)


def test_entry_points_may_be_left_out(package):
    package("atlas", "atlas_udfs", ONE + HOOK)
    assert loaded(entry_points=False) == []


def test_a_blocked_plugin_is_not_even_imported(package):
    package("atlas", "atlas_udfs", "raise RuntimeError('imported')")
    assert ("atlas", "one@1") not in loaded(entry_points=True, blocked=["atlas"])
    assert "atlas_udfs" not in sys.modules


def test_a_name_to_block_that_no_plugin_has_is_told(package, caplog):
    package("atlas", "atlas_udfs", "raise RuntimeError")
    loaded(entry_points=True, blocked=["atlas", "atlass"])
    [record] = caplog.records
    assert record.message.startswith("no plugin 'atlass' to block (known: ")
    assert "atlas" in record.message.partition("known")[2]


def test_two_packages_with_a_plugin_of_one_name_stop_the_start(package):
    package("atlas", "atlas_udfs", ONE)
    package("acme", "acme_udfs", ONE, entry="atlas")
    with pytest.raises(PluginError, match="two installed packages have a plugin 'atlas'"):
        loaded(entry_points=True)


BROKEN = {
    "import": ("import no_such_library", r"plugin 'atlas' \(atlas_udfs\) cannot be imported: .*no_such_library"),
    "functions": (ONE + HOOK.replace("return", "raise KeyError('ATLAS_KEY')\n    return"), "KeyError: 'ATLAS_KEY'"),
    "nothing": ("", "plugin 'atlas': has neither the hook udf_functions"),
    "no function": (ONE + HOOK.replace("[one]", "[1]"), "plugin 'atlas': udf_functions returned 1"),
    "unknown hook": (f"{ONE}{HOOK}@udf.hookimpl\ndef udf_other(): ...\n", "plugin 'atlas': unknown hook 'udf_other'"),
    "argument": (ONE + HOOK.replace("functions()", "functions(x)"), r"plugin 'atlas': [\s\S]*\{'x'\}"),
    "wrapper": (ONE + HOOK.replace("hookimpl", "hookimpl(wrapper=True)").replace("return", "yield"), "is a wrapper"),
    "owner": (f"{ONE}{HOOK}@udf.hookimpl\ndef udf_owner(): return 1\n", "plugin 'atlas': udf_owner returned 1"),
}


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("how", ["named", "asked for"])
def test_a_package_that_was_asked_for_and_cannot_be_loaded_stops_the_start(package, text, message, how):
    package("atlas", "atlas_udfs", text)
    with pytest.raises(PluginError, match=message):
        loaded(*(["atlas"] if how == "named" else []), entry_points=None if how == "named" else True)


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_an_installed_package_that_cannot_be_loaded_is_skipped_unless_it_is_asked_for(package, caplog, text, message):
    package("atlas", "atlas_udfs", text)
    package("acme", "acme_udfs", ONE.replace("one", "two"))
    found = loaded(entry_points=None)
    assert ("acme", "two@1") in found and not any(name == "atlas" for name, _ in found)
    [told] = [record.message for record in caplog.records if re.search(message, record.message)]
    assert told.endswith("it is skipped, because no setting names it")


def test_naming_plugins_means_these(package, plugin):
    package("atlas", "atlas_udfs", ONE.replace("one", "two"))
    mine = plugin(ONE)
    assert loaded(mine, entry_points=None) == [(mine, "one@1")]
    assert ("atlas", "two@1") in loaded(entry_points=None)
    assert {("atlas", "two@1"), (mine, "one@1")} <= set(loaded(mine, entry_points=True))


def test_a_module_is_loaded_by_its_name(package):
    package("atlas", "atlas_udfs", ONE)
    assert loaded("atlas_udfs") == [("atlas_udfs", "one@1")]


def test_a_file_is_loaded_by_its_path(plugin):
    path = plugin(ONE)
    assert loaded(path) == [(path, "one@1")]


def test_a_hook_decides_what_a_module_offers(plugin):
    path = plugin(ONE + "\n@udf.scalar\ndef hidden() -> int:\n    return 2\n" + HOOK)
    assert loaded(path) == [(path, "one@1")]


def test_two_files_of_one_name_are_two_plugins(plugin, tmp_path):
    (tmp_path / "more").mkdir()
    first, second = plugin(ONE), plugin(ONE.replace("one", "two"), "more/a_plugin.py")
    assert loaded(first, second) == [(first, "one@1"), (second, "two@1")]


def test_a_file_takes_no_modules_place(plugin):
    import json

    path = plugin(ONE, "json.py")
    assert loaded(path) == [(path, "one@1")]
    assert sys.modules["json"] is json


def test_dataclasses_of_a_file_find_their_module(plugin):
    text = "from dataclasses import dataclass\nfrom typing import ClassVar\n" + ONE
    path = plugin(text + "\n@dataclass\nclass Point:\n    x: 'float'\n    n: 'ClassVar[int]' = 1\n")
    assert loaded(path) == [(path, "one@1")]


@pytest.mark.parametrize(
    ("text", "kind", "why"),
    [
        ("1 / 0", PluginImportError, "cannot be imported: ZeroDivisionError"),
        ("def f(:", PluginImportError, "SyntaxError"),
        ("import sys\nsys.exit('no key')", PluginImportError, "SystemExit: no key"),
        ("x = 1", PluginError, "has neither the hook udf_functions"),
        ("\nimport json\njson.loads('{')", PluginImportError, "a_plugin.py, line 3)"),
        (ONE + "@udf.hookimpl\ndef udf_functions():\n    return 1 / 0", PluginImportError, "a_plugin.py, line 9)"),
        (PARTS + "class A(udf.AggregateFunction): ...", DeclarationError, "no method 'create_accumulator'"),
        (PARTS + "class P(udf.ProcessTableFunction): ...", DeclarationError, "function p"),
        (
            PARTS + "@udf.hookimpl\ndef udf_functions():\n    class A(udf.AggregateFunction): ...\n    return [A]",
            DeclarationError,
            "no method",
        ),
        ("import udf_server as udf\n@udf.scalar\ndef f(a) -> int: ...", DeclarationError, "function f, parameter 'a'"),
        (ONE + "@udf.hookimpl\ndef udf_function(): return []", PluginError, "unknown hook 'udf_function'"),
        (ONE + "@udf.hookimpl\ndef udf_functions(config): return []", PluginError, "config"),
        (ONE + "@udf.hookimpl\ndef udf_functions(): return [len]", PluginError, "<built-in function len>"),
        (ONE + "@udf.hookimpl\ndef udf_functions(): return 1 / 0", PluginImportError, "ZeroDivisionError"),
        (ONE + "@udf.hookimpl\ndef udf_functions(): pass", PluginImportError, "not iterable"),
    ],
)
def test_a_broken_plugin_stops_the_start_and_is_named(plugin, text, kind, why):
    path = plugin(text)
    with pytest.raises(kind) as raised:
        loaded(path)
    assert why in str(raised.value)
    assert path in str(raised.value)


def test_a_plugin_that_failed_leaves_no_half_module(plugin):
    path = plugin("1 / 0", "half_made.py")
    with pytest.raises(PluginImportError):
        loaded(path)
    assert "half_made" not in sys.modules


@pytest.mark.parametrize("name", ["no_such_module", "./no_such_file.py", "/no/such/file.py"])
def test_a_plugin_that_is_not_there_stops_the_start(name):
    with pytest.raises(PluginImportError, match="cannot be imported"):
        loaded(name)


def test_one_plugin_given_twice_is_one_plugin(plugin):
    path = plugin(ONE)
    assert loaded(path, path) == [(path, "one@1")]


@pytest.mark.parametrize("text", [ONE, ONE + HOOK], ids=["without the hook", "with the hook"])
@pytest.mark.parametrize("named", ["atlas", "atlas_udfs"])
def test_an_installed_plugin_that_is_named_too_is_one_plugin(package, text, named):
    package("atlas", "atlas_udfs", text)
    assert [name for name, key in loaded(named, entry_points=True) if key == "one@1"] == ["atlas"]


AGGREGATE = """
import udf_server as udf

class Longest(udf.AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def get_value(self, accumulator: int) -> int:
        return accumulator

    def accumulate(self, accumulator: int, text: str) -> int:
        return max(accumulator, len(text))
"""


def test_aggregates_that_a_plugin_only_imports_are_named_in_a_warning(plugin, monkeypatch, tmp_path, caplog):
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin(AGGREGATE, "mine_of_test.py")
    star = plugin(ONE + "from mine_of_test import *\n", "star.py")
    assert loaded(star) == [(star, "one@1")]
    assert "class Longest is imported from mine_of_test and therefore not offered; return it from" in caplog.text
    caplog.clear()
    base = plugin("from mine_of_test import Longest\nclass Longer(Longest):\n    pass\n", "base.py")
    assert [key for _, key in loaded(base)] == ["longer@1"]
    assert not caplog.text
    del sys.modules["mine_of_test"]


def test_a_clash_of_functions_stops_the_start(plugin):
    first, second = plugin(ONE, "first.py"), plugin(ONE, "second.py")
    manager = build_plugin_manager([first, second], entry_points=False)
    with pytest.raises(FunctionClash, match=r"'one@1' is provided by plugin .*first\.py.* and by plugin .*second\.py"):
        Registry(load_functions(manager))


@pytest.mark.parametrize("option", ["wrapper", "hookwrapper"])
@pytest.mark.parametrize("hook", ["udf_functions", "udf_owner"])
def test_a_hook_that_wraps_others_is_refused(plugin, hook, option):
    path = plugin(f"{ONE}\n@udf.hookimpl({option}=True)\ndef {hook}():\n    yield\n", "wraps.py")
    with pytest.raises(PluginError, match=f"wraps.*its {hook} is a wrapper"):
        loaded(path)
