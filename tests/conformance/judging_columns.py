"""Names and types of columns."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.column_types import UnknownType, parse_type
from tests.conformance.expectation import Expectation
from tests.conformance.observation import Observation, Run
from tests.conformance.verdict import Verdict

__all__ = ["judge_columns"]

_FIELDS = ("expected_columns", "expected.columns")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_BROKEN = ("float", "double")


def judge_columns(expected: Expectation, seen: Observation, verdict: Verdict) -> None:
    """Compares the columns of every run that has some."""
    runs = [run for run in seen.runs if run.columns is not None]
    for name in _FIELDS:
        wanted = expected.peek(name)
        if wanted is not None and runs:
            expected.note(name, f"{name}.name", f"{name}.type", f"{name}.compare")
            for run in runs:
                _columns(expected, seen, run, name, [_column(each) for each in wanted], verdict)
    types = expected.peek("expected.types")
    if isinstance(types, list) and runs:
        expected.note("expected.types")
        for run in runs:
            _columns(expected, seen, run, "expected.types", [(None, str(each)) for each in types], verdict)


def _column(expected: Any) -> tuple[str | None, str | None]:
    if isinstance(expected, Mapping):
        return expected.get("name"), expected.get("type")
    return str(expected), None


def _columns(
    expected: Expectation,
    seen: Observation,
    run: Run,
    field: str,
    wanted: Sequence[tuple[str | None, str | None]],
    verdict: Verdict,
) -> None:
    columns = list(run.columns or ())
    if len(columns) != len(wanted):
        verdict.problems.append(f"{run.how}: columns {[n for n, _ in wanted]}, found {[n for n, _ in columns]}")
        return
    for place, ((name, type_), (own, ddl)) in enumerate(zip(wanted, columns, strict=True)):
        verdict.compared += 1
        origin = _origin(place, own, run.named or seen.named, seen.starred)
        if [n.lower() for n, _ in columns].count(own.lower()) > 1 or origin == "expression":
            # The engine names expressions and duplicate columns; the case has the name of its sink.
            expected.waived.add((field, place))
        elif name is not None and name.lower() != own.lower() and origin == "column":
            expected.leave(f"{field}.name")
        elif name is not None and name.lower() != own.lower():
            verdict.problems.append(f"{run.how}: column {place} is called {own!r}, expected {name!r}")
        if type_ is not None and not _fits(type_, ddl):
            verdict.problems.append(f"{run.how}: column {own!r} has type {ddl}, expected {type_}")


def _origin(place: int, own: str, named: Sequence[str], starred: str) -> str:
    """Returns the origin of the column's name: an alias of the query, a column of its tables, or the engine."""
    if len(named) > place:
        return named[place]
    return starred if re.fullmatch(r"\w+", own) else "expression"


def _fits(wanted: str, ddl: str) -> bool:
    """Whether types are equal; whole numbers may have any width, as of built-in functions; times may have a zone."""
    try:
        type_ = parse_type(wanted)
    except UnknownType:
        return False
    return _same_type(type_.ddl.replace(" ", ""), ddl.replace(" ", "").replace("`", ""))


def _same_type(wanted: str, found: str) -> bool:
    wanted = wanted.replace("`", "")
    if wanted == found:
        return True
    if wanted in _WHOLE and found in _WHOLE:
        return True
    if wanted in (*_WHOLE, *_BROKEN) and found in _BROKEN:
        return wanted != "double" or found == "double"
    if wanted.startswith("decimal") and found.startswith("decimal"):
        return _scale(wanted) <= _scale(found) if "38,18" not in wanted else True
    if {wanted, found} == {"timestamp", "timestamp_ntz"}:
        return True
    if wanted.startswith("array<") and found.startswith("array<"):
        return _same_type(wanted[6:-1], found[6:-1])
    return False


def _scale(ddl: str) -> int:
    return int(ddl.rpartition(",")[2].rstrip(")")) if "," in ddl else 0
