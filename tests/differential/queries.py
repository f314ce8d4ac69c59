"""Cases of `remote.sql`."""

import dataclasses
import re

from tests.differential.both import Both
from tests.differential.cases import Case, draw_settings, draw_tables, mentioned
from tests.differential.choices import Choices
from tests.differential.refused import draw_refused
from tests.differential.sources import statement

__all__ = ["draw_query"]

PARAMETERS = {
    "0.5D": "0.5", "DATE '2026-03-29'": "dt.date(2026, 3, 29)", "TIME '02:30:00'": "dt.time(2, 30)",
    "TIMESTAMP '2026-03-29 01:30:00'": "utc('2026-03-29 01:30:00')",
    "INTERVAL '1 02:00:00' DAY TO SECOND": "dt.timedelta(1, 7200)",
}  # fmt: skip
"""Literals that may become parameters, and their values in Python."""
GAPS = (" ", " ", " ", "  ", "\n", "\t", " /* f(a, ' */ ", " -- it's `é`\n", "/**/", " /* one /* in */ another */ ")
QUOTED = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)""")
LITERAL = re.compile("|".join([*map(re.escape, PARAMETERS), r"(?<=LIMIT )\d", r"(?<= > )\d(?![.\w])"]))


def draw_query(draw: Choices) -> Case:
    """A SELECT statement, with remote functions and with Spark's."""
    settings = draw_settings(draw)
    tables = draw_tables(draw, settings)
    tags = {"sql"}
    if draw.chance(2):
        return draw_refused(draw, settings, tables[0])
    query = statement(draw, tables, settings, tags)
    given = draw.weighted([(75, _as_it_is), (6, _named), (3, _positional), (6, _frames), (10, _spaced)])
    tags.add(given.__name__.strip("_"))
    run = draw.weighted([(93, "remote.sql"), (7, "estimated")])
    tags |= {"estimated"} if run == "estimated" else set()
    text = Both(_between(draw, query.text.ours), query.text.sparks) if given is _spaced else query.text
    calls = Both(f"{run}({given(text.ours)})", f"spark.sql({given(text.sparks)})")
    if "limited" in tags:
        # An expression that fails for a row after the LIMIT may fail in Spark only.
        settings = dataclasses.replace(settings, ansi=False)
    return Case(settings, mentioned(tables, calls.sparks), calls.ours, calls.sparks, tags, query.ordered, query.names)


def _as_it_is(text: str) -> str:
    return repr(text)


def _spaced(text: str) -> str:
    return repr(text)


def _between(draw: Choices, text: str) -> str:
    """Write other white space and comments for some of the blanks between words.

    Not after a star: for Spark `*/` ends a hint.
    """
    pieces = QUOTED.split(text)
    return "".join(
        piece if QUOTED.fullmatch(piece) else re.sub(r"(?<!\*) ", lambda _: draw.of(GAPS), piece) for piece in pieces
    )


def _named(text: str) -> str:
    """Replace every literal by a named parameter."""
    names = {literal: f"p{number}" for number, literal in enumerate(dict.fromkeys(LITERAL.findall(text)))}
    values = ", ".join(f"{name!r}: {_value(literal)}" for literal, name in names.items())
    return f"{LITERAL.sub(lambda found: f':{names[found[0]]}', text)!r}, {{{values}}}"


def _positional(text: str) -> str:
    """Replace every literal by `?`."""
    return f"{LITERAL.sub('?', text)!r}, [{', '.join(map(_value, LITERAL.findall(text)))}]"


def _value(literal: str) -> str:
    return PARAMETERS.get(literal, literal)


def _frames(text: str) -> str:
    """Replace the tables by DataFrames in braces."""
    if "{" in text:
        return repr(text)
    named = re.sub(r"\b(FROM|JOIN|TABLE) ([tu])\b(?!\.)", r"\1 {\2}", text)
    tables = sorted(set(re.findall(r"\{([tu])\}", named)))
    return ", ".join([repr(named), *(f"{name}=spark.table({name!r})" for name in tables)])
