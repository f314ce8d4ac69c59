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
DESIGNS = ROOT / "docs/flip-by-flip.md"
ROW = re.compile(r"^\| (?P<promise>.+) \| (?P<here>[^|]*) \| (?P<reason>[^|]*) \| (?P<tests>[^|]*) \|$")
LINK = re.compile(r"\[`(?P<name>test_\w+)`\]\((?P<path>[^)]+)\)")
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


def unshown(row: re.Match[str]) -> str:
    """Returns what a row of the page about designs lacks; empty if nothing."""
    links = list(LINK.finditer(row["tests"]))
    if row["here"] not in ("kept", "otherwise", "not"):
        return f"{row['here']!r} is none of kept, otherwise, not"
    if row["here"] != "kept" and not row["reason"].strip():
        return "it has no reason"
    if LINK.sub("", row["tests"]).strip(", ") or not links:
        return "its tests are not links such as [`test_a`](../tests/test_b.py)"
    for link in links:
        path = (DESIGNS.parent / link["path"]).resolve()
        if not path.is_file() or f"def {link['name']}(" not in path.read_text() or link["name"] in FAILING:
            return f"no test {link['name']} that must pass is in {link['path']}"
    return ""


def test_each_promise_of_the_designs_is_shown_by_tests():
    lines = [line for line in DESIGNS.read_text().splitlines() if line.startswith("| ")]
    rows = [row for line in lines if (row := ROW.match(line)) and row["here"] != "here" and row["here"] != "---"]
    assert len(rows) + 2 * DESIGNS.read_text().count("\n## ") == len(lines)
    assert {row["promise"]: why for row in rows if (why := unshown(row))} == {}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("| p | kept |  | [`test_x`](test_promises.py) |", "no test test_x"),
        ("| p | kept |  | test_x |", "its tests are not links"),
        ("| p | not |  | [`test_x`](test_promises.py) |", "it has no reason"),
        ("| p | maybe | r | [`test_x`](test_promises.py) |", "'maybe' is none of"),
    ],
)
def test_a_promise_that_nothing_shows_is_found(row: str, why: str):
    found = ROW.match(row)
    assert found is not None and why in unshown(found)
