"""Pages name the tests that hold what they promise: `<!-- tests: test_a, test_b -->` at the end of a passage."""

import ast
import collections
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import NOT_RUN, PAGES, ROOT

COMMENT = re.compile(r"<!--\s*tests?\b(.*?)-->", re.DOTALL)
NAMES = re.compile(r":( test_\w+(,\s+test_\w+)*) ")
HELD = [
    "budgets.md", "caching.md", "guards.md", "parquet.md", "reliability.md", "security.md", "windows-on-streams.md",
]  # fmt: skip
"""The pages that say what happens to rows, money and access."""
BLOCK = re.compile(r"^ *```(\w*)\n.*?^ *```$", re.MULTILINE | re.DOTALL)
RUNS = "<a block that runs>"
SHORT = 300
"""A section of at most this length introduces those below it."""
PROMISING = sorted(page for page in PAGES if COMMENT.search(page.read_text()))


def functions() -> Iterator[tuple[str, bool]]:
    """Yields the name of each test function, and whether it is expected to fail."""
    for folder in ("tests", "plugins"):
        for path in (ROOT / folder).rglob("test_*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    yield node.name, any("xfail" in ast.unparse(each) for each in node.decorator_list)


FUNCTIONS = collections.Counter(name for name, _ in functions())
FAILING = {name for name, fails in functions() if fails}


def wrong(text: str) -> list[str]:
    """Returns what is wrong with the comments of a page that name tests."""
    found = []
    for each in COMMENT.finditer(text):
        if not NAMES.fullmatch(each[1]):
            found.append(f"{each[0]}: write <!-- tests: test_a, test_b -->")
            continue
        for name in re.findall(r"test_\w+", each[1]):
            if FUNCTIONS[name] != 1:
                found.append(f"{name}: {FUNCTIONS[name]} tests have this name")
            elif name in FAILING:
                found.append(f"{name}: it is expected to fail")
    return found


@pytest.mark.parametrize("page", PROMISING, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_tests_that_exist(page: Path):
    assert wrong(page.read_text()) == []


@pytest.mark.parametrize("page", HELD)
def test_each_section_names_its_tests_or_runs(page: str):
    """A section of prose alone would promise what nothing holds."""
    text = BLOCK.sub(lambda block: "" if block[1] in NOT_RUN else RUNS, (ROOT / "docs" / page).read_text())
    sections = re.split(r"^#+ (.*)$", text, flags=re.MULTILINE)
    bare = [
        title
        for title, text in zip(sections[1::2], sections[2::2], strict=True)
        if not COMMENT.search(text) and RUNS not in text and len(text.strip()) > SHORT
    ]
    assert bare == []


def test_a_comment_that_names_no_test_is_found():
    this = test_a_comment_that_names_no_test_is_found.__name__
    assert wrong(f"The cache holds. <!-- tests: {this},\n{this} -->") == []
    assert wrong("<!-- tests: test_that_was_renamed -->") == ["test_that_was_renamed: 0 tests have this name"]
    for text in (f"<!-- tests: {this} and others -->", f"<!-- test {this} -->", f"<!--tests: {this}-->"):
        assert wrong(text) == [f"{text}: write <!-- tests: test_a, test_b -->"]
