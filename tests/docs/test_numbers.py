"""Measured numbers in the documentation are those that a suite of benchmarks prints again."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES
from tests.docs.tables import ROOT

MEASURED = [ROOT / "docs/benchmarks.md", ROOT / "docs/performance.md"]
NUMBER = re.compile(r"^\|.*\| *\**-?\d", re.MULTILINE)
SUITE = re.compile(r"make bench SUITE=(\w+)|python -m benchmarks\.(\w+)")


def sections(page: Path) -> Iterator[tuple[str, str]]:
    for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        yield title, text


def printed_names() -> list[re.Pattern[str]]:
    """The texts of the benchmarks that can be the name of a number; what an f-string inserts may be anything."""
    found = set()
    for path in (ROOT / "benchmarks").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
                if re.search(r"\w{4}", "".join(str(part or " ") for part in parts)):
                    found.add("".join(r"\w+" if part is None else re.escape(str(part)) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(re.escape(node.value))
    return [re.compile(each) for each in found]


def unknown_names(text: str) -> list[str]:
    """The names in the first column of tables of names that no suite prints."""
    names = []
    for table in re.findall(r"^\| name \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        for row in table.splitlines():
            names += re.findall(r"`(\w+)`", row.split("|")[1])
    printed = printed_names()
    return [name for name in names if not any(each.fullmatch(name) for each in printed)]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_page_has_a_number_that_was_measured_only_once(page: Path):
    said = r"one-off (?:measurement|comparison)|(?:measured|looked at) once"
    assert re.findall(said, page.read_text(), re.IGNORECASE) == []


@pytest.mark.parametrize("page", MEASURED, ids=lambda page: page.name)
def test_a_section_with_numbers_names_the_suite_that_prints_them(page: Path):
    suites = {path.stem for path in (ROOT / "benchmarks").rglob("*.py")} | {"peers", "udfbench"}
    found = {title: SUITE.findall(text) for title, text in sections(page) if NUMBER.search(text)}
    assert found
    assert [title for title, named in found.items() if not named] == []
    assert {first or second for named in found.values() for first, second in named} <= suites


def test_a_name_of_a_number_is_one_that_a_suite_prints():
    text = (ROOT / "docs/benchmarks.md").read_text()
    assert unknown_names(text) == []
    assert unknown_names("| name | result |\n| --- | --- |\n| `rows_per_fortnight` | 12 |\n") == ["rows_per_fortnight"]
