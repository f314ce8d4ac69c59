"""Tables of the documentation agree with the code."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from cogapp import Cog

import remote_udf.errors
import spark_client.base.errors
import udf_server.base.errors
from remote_udf.ddl import parse_type
from remote_udf.errors import ErrorCode, RemoteUdfError
from remote_udf.types import spelled
from remote_udf.version import __version__
from spark_client.base.security import Security
from spark_client.shell.cli import SECURITY
from spark_client.shell.cli import main as remote_udf_command
from tests.docs.pages import PAGES
from tests.docs.tables import ROOT, modules
from udf_server.commands.cli import main as udf_server_command
from udf_server.declaring.annotations import codecs_for
from udf_server.serving.config import settings

COGGED = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "proto/remote_udf/option_types.py"]


def first_cells(page: str, heading: str) -> list[str]:
    """Returns the code in the first column of the tables below a heading, down to the next one."""
    text = (ROOT / page).read_text()
    section = re.split(r"^#+ ", text.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"^\| `([^|`]*)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("page", COGGED, ids=lambda page: page.name)
def test_generated_tables_are_up_to_date(page: Path, capsys):
    """If this fails, run `make docs`."""
    status = Cog().main(["cog", "--check", "--diff", "-I", str(Path(__file__).parent), str(page)])
    assert status == 0, capsys.readouterr().out


def test_every_folder_of_the_architecture_is_there():
    named = re.findall(r"`([\w/.]+)`", (ROOT / "ARCHITECTURE.md").read_text())
    paths = [each for each in named if "/" in each and not each.startswith(("http", "/"))]
    roots = (ROOT, ROOT / "spark_client", ROOT / "udf_server")
    assert [each for each in paths if not any((root / each).exists() for root in roots)] == []
    assert paths


def test_every_module_says_what_it_is_for():
    assert [path for path in modules() if not path.read_text().lstrip().startswith('"""')] == []


def test_every_error_class_is_explained():
    classes = {
        name
        for module in (remote_udf.errors, spark_client.base.errors, udf_server.base.errors)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, RemoteUdfError) and value is not RemoteUdfError
    }
    explained = first_cells("docs/errors.md", "Classes")
    assert set(explained) == classes
    assert len(explained) == len(classes)


def test_every_error_code_is_explained_once():
    explained = first_cells("docs/errors.md", "Codes of rows") + first_cells("docs/errors.md", "Codes of streams")
    assert sorted(explained) == sorted(ErrorCode)


def test_every_alert_has_an_answer():
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules/alerts.yml").read_text())
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert first_cells("docs/tutorials/operating.md", "When you are paged") == alerts


def test_types_are_what_annotations_become():
    names = {}
    exec(
        "import numpy\nfrom typing import *\nfrom decimal import Decimal\nfrom datetime import *\n",
        names,
    )
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \|$", (ROOT / "docs/writing-a-plugin.md").read_text(), re.MULTILINE)
    assert len(rows) > 10
    for annotation, ddl in rows:
        (codec,) = codecs_for(eval(annotation, names), annotation)
        assert codec.type == parse_type(ddl), annotation
        assert spelled(codec.type) == ddl, annotation


def commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for part, below in command.commands.items():
            yield from commands(f"{name} {part}", below)


COMMANDS = dict([*commands("udf-server", udf_server_command), *commands("remote-udf", remote_udf_command)])


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_and_their_options_are_explained(name: str):
    """Settings and fields of `Security` have tables or a reference of their own."""
    pages = "\n".join(page.read_text() for page in PAGES)
    elsewhere = {setting.name for setting in settings()} | set(SECURITY)
    flags = {
        flag
        for parameter in COMMANDS[name].params
        if isinstance(parameter, click.Option) and not parameter.hidden and parameter.name not in elsewhere
        for flag in parameter.opts
        if flag.startswith("--")
    }
    assert re.search(rf"\b{name}\b", pages)
    assert {flag for flag in flags if flag not in pages} <= {"--version"}


def test_a_command_has_every_field_of_security():
    assert [field.name for field in dataclasses.fields(Security)] == list(SECURITY)


def test_changelog_has_this_version():
    versions = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(version for version in versions if version != "Unreleased") == __version__
