"""Tables of the documentation agree with the code."""

import re
from pathlib import Path

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
from tests.docs.tables import ROOT, modules
from udf_server.base.annotations import codecs_for

COGGED = sorted((ROOT / "docs").glob("*.md"))


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


def test_changelog_has_this_version():
    versions = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(version for version in versions if version != "Unreleased") == __version__
