"""Alters an expectation, one field at a time: a judge that does not detect it compares less than it reports."""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.conformance.expectation import Expectation
from tests.conformance.messages import facts_of

__all__ = ["mutations"]

_MESSAGES = ("expected_error", "message_contains")
_READING = (
    "ordered", "final_rows_ordered", "changelog", "materialized", "compare", "where", "phases", "assert",
    "batch_equivalent",
)  # fmt: skip
"""They say how to read the rest; altering them asserts less, or nothing else."""
_TYPES = {"STRING": "INT"}
_KINDS = {"+I": "-D", "-D": "+I", "-U": "+U", "+U": "-U"}
_LONGEST_MS = 3_600_000
"""Longer than any case takes."""
_PHASES = {"planning": "runtime", "runtime": "planning"}


def mutations(
    expectation: Mapping[str, Any], waived: frozenset[tuple[str, int]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields pairs of the altered field, and the altered expectation."""
    fields = Expectation(expectation).fields
    for path, value in _places(expectation, ()):
        name = ".".join(str(part) for part in path if not isinstance(part, int))
        if path[-1] in _READING or ("phases" in path and isinstance(value, str)):
            continue
        if not any(each == name or each.startswith(f"{name}.") for each in fields):
            continue
        if path[-1] == "name" and (".".join(map(str, path[:-2])), path[-2]) in waived:
            continue
        yield from (
            (f"{name}: {what}", _put(expectation, path, new)) for what, new in _altered(path, value, expectation)
        )


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields every mapping's values, and lists of rows; a row's values are altered together."""
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield (*path, key), inside
            yield from _places(inside, (*path, key))
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        for number, inside in enumerate(value):
            yield from _places(inside, (*path, number))


def _altered(path: tuple[Any, ...], value: Any, expectation: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    key = path[-1]
    if key in _MESSAGES or (key == "error" and isinstance(value, str)):
        yield from _message(str(value))
    elif key in ("phase", "raised_at") and isinstance(value, str):
        other = "runtime" if "runtime" not in value and "restore" not in value else "planning"
        yield (
            "another phase",
            "after_restore" if value == "before_restore" else "before_restore" if "restore" in value else other,
        )
    elif (key == "kind" and value in _KINDS) or (key == "row_kind" and value in _KINDS):
        yield "another kind", _KINDS[value]
    elif key == "kind":
        yield "another kind", "rows" if value == "error" else "error"
    elif key == "type":
        yield "another type", _TYPES.get(str(value), "STRING")
    elif isinstance(value, list):
        yield from _list(path, value, expectation)
    elif key == "calls" and isinstance(value, str) and (number := re.search(r"\d+", value)):
        yield "another number", f"{value[: number.start()]}{int(number[0]) + 7}{value[number.end() :]}"
    elif key == "minimum_elapsed_ms":
        # A bound that is a little higher holds as well.
        yield "another bound", float(value) + _LONGEST_MS
    elif key == "expected_fact":
        yield "another fact", "invalid"
        yield from ((f"another name than {name!r}", value.replace(name, f"qux_{name}")) for name in _listed(value))
    elif not isinstance(value, Mapping):
        yield "another value", _other(value)


def _list(path: tuple[Any, ...], value: list[Any], expectation: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    rows = bool(value) and isinstance(value[0], list | Mapping)
    if value:
        yield ("a row dropped" if rows else "a value dropped"), value[:-1]
        yield ("a row added" if rows else "a value added"), [*value, copy.deepcopy(value[-1])]
    for number, each in enumerate(value):
        if isinstance(each, list):
            for place, inside in enumerate(each):
                changed = copy.deepcopy(value)
                changed[number][place] = _other(inside)
                yield f"another value in row {number}", changed
        elif not isinstance(each, Mapping):
            yield f"another value at {number}", [*value[:number], _other(each), *value[number + 1 :]]
    if rows and _is_ordered(path, expectation):
        for number in range(len(value) - 1):
            if value[number] != value[number + 1]:
                swapped = [*value[:number], value[number + 1], value[number], *value[number + 2 :]]
                yield f"rows {number} and {number + 1} in another order", swapped
                break


def _listed(fact: str) -> list[str]:
    """Returns the names at the end of a fact, after "are" or a colon."""
    match = re.search(r"(?:\bare|\bis|:)\s+(\w+(?:, \w+)*)$", fact)
    return match[1].split(", ") if match else []


def _is_ordered(path: tuple[Any, ...], expectation: Mapping[str, Any]) -> bool:
    expected = Expectation(expectation)
    if path == ("expected", "rows"):
        return expected.peek("expected.ordered") is True and not expected.peek("expected.final_rows")
    return path == ("expected", "final_rows") and expected.peek("expected.final_rows_ordered") is True


def _message(text: str) -> Iterator[tuple[str, Any]]:
    facts = facts_of(text)
    for fact in (*facts.names, *facts.numbers):
        other = text.replace(fact, _other_fact(fact))
        if other != text:
            yield f"another fact than {fact!r}", other
    yield "another message", "The moon is in 'Aquarius', not in ORION, since 1969"


def _other_fact(fact: str) -> str:
    if fact.lstrip("-").isdigit():
        return str(int(fact) + 41)
    return f"QUX_{fact}" if fact.isupper() else f"qux_{fact}"


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 7
    if isinstance(value, float):
        return value * 3 + 7.5
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [*value, "more"]
    return "something" if value is None else None


def _text(value: str) -> str:
    if value.lstrip("-").replace(".", "", 1).isdigit():
        return f"{float(value) + 7.25}"
    return f"{value[:-1]}~" if value and value[-1] != "~" else "other"


def _put(expectation: Mapping[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(dict(expectation))
    inside = changed
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    return dict(changed)
