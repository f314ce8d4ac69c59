"""The prose of the project uses the field's terms: documentation, docstrings, comments and messages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("proto", "udf_server", "spark_client", "plugins", "examples", "benchmarks", "deploy", "docs")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".proto"} and "_pb2" not in path.name and path.name != "conformance.md"
)
PAGES = sorted(ROOT.glob("*.md"))

PLAIN = {
    r"tak(?:e|es|en|ing) (?:\w+ )?rows? back|rows? (?:\w+ )?taken back|takes? one back": "retract",
    r"falls? silent|says nothing|stands? still": "is unresponsive, hangs, is idle",
    r"silent sources?": "idle source",
    r"processor time": "CPU time",
    r"the page for people|a page for people": "web UI",
    r"so many": "n, a number of",
    r"every so (?:often|long)": "at this interval",
    r"nobody gets in|lets? (?:\w+ )?callers? in": "is rejected, is accepted",
    r"in the open": "unencrypted",
    r"of (?:its|their|our|your|his) own (?:that|which)": "separate",
    r"goes by|go by(?! )": "uses, is determined by",
    r"for ever\b": "forever",
    r"wherefrom|thereof|whereof|wherein|therein|hereby|whereby|herein": "from which, of it, in it",
    r"is nobody's|are nobody's": "say what is not guaranteed",
    r"by hand": "manual, hand-written",
    r"stops? in peace": "shuts down gracefully, drains",
    r"is told (?:from|apart)|are told (?:from|apart)": "is distinguished",
    r"be had\b": "is supported, is available",
    r"\bmend(?:s|ed|ing)?\b": "fix, correct, repair",
    r"(?:be|is|are) left out|leaves? out": "is skipped, is excluded, is omitted",
    r"\banew\b": "again",
    r"senseless": "invalid",
    r"come what may|be that as it may": "in any case",
    r"the verbs?\b|classic verbs": "the methods",
    r"under way": "in flight, running",
    r"not what it (?:takes|must be)": "is not valid",
    r"what (?:becomes|became) of": "what happens to",
    r"signs? of life": "heartbeat, ping",
    r"\bstands? (?:in|for|there|beside|behind|to)\b": "is in, represents",
    r"never (?:came|comes?) back|(?:came|comes?) back as": "does not return, returns",
    r"are let go|is let go": "is discarded, is released",
    r"so had by|knows better|the very same": "has, reports the error, the same",
    r"\bhand(?:s|ed)? (?:\w+ )?on\b": "is passed on",
    r"gives? out\b|gave out\b|given out\b": "emits",
    r"says? what is wrong|is asked for\b|asked for there": "reports the error, is requested",
    r"\bseen to\b|goes? (?:their|its) own way": "is processed",
    r"what (?:came|comes) of": "the result of",
}
"""A home-made term or turn, and the field's."""


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a page or a protocol, or a module's comments, docstrings and messages, with line numbers."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.split("\n"), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from enumerate(node.value.split("\n"), node.lineno)


def findings(path: Path) -> list[str]:
    """Returns the home-made terms in a file, with their replacements."""
    return [
        f"{path}:{number}: {found[0]!r}; write: {plain}"
        for number, line in prose_of(path)
        for term, plain in PLAIN.items()
        for found in re.finditer(term, line, re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_uses_the_fields_terms(path):
    assert findings(path) == []


def test_a_home_made_term_is_found_in_each_kind_of_prose(tmp_path):
    module, page = tmp_path / "module.py", tmp_path / "page.md"
    module.write_text('"""Waits so many times."""\n\n# It works by hand.\nERROR = f"{1} is not what it takes"\n')
    page.write_text("Plain.\nUses processor time.\n")
    assert [line.partition(": ")[2] for line in findings(module)] == [
        "'by hand'; write: manual, hand-written",
        "'so many'; write: n, a number of",
        "'not what it takes'; write: is not valid",
    ]
    assert [line.partition(": ")[2] for line in findings(page)] == ["'processor time'; write: CPU time"]
