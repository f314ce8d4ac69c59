"""The assertions of a case, field by field, with a record of the fields that were read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["KINDS", "Expectation", "ExpectedRow", "alternatives", "without_alternatives"]

KINDS = ("rows", "changelog", "error", "plan", "bundle_calls", "combine", "sequencing", "semantics")
"""What `expected.kind` may say."""

_GIVEN = re.compile(
    r"expected\.calls\.(segments\.)?include_value|expected\.include_value"
    r"|expected\.calls\.segments\.(key|accumulators|updated_values_after_each_row|rows(\.(row|row_kind|kind))?)"
    r"|expected\.parts\.(index|bundled|accumulator|(starting|final)_value|updated_values_after_each_row|include_value)"
    r"|expected\.merges?\.(existing|windows|sessions|before|new|added|window)"
    r"|expected\.steps\.(given|release|complete|fail)(\..*)?|expected\.assignments\.(times?|(slide|size|step|offset|gap)_\w+)|steps\.(op|key|state|table)"
)
"""Fields inside an expectation that say what is done, and not what comes of it."""

_ALTERNATIVE = re.compile(r"alternatives?(_rows)?|harness_artefacts")
"""What else may come: another outcome, or an outcome without the rows that only Flink's test harness emits."""
_OUTCOMES = ("rows", "final_rows", "changes")


@dataclass(frozen=True)
class ExpectedRow:
    """`kind` and `phase` are None if the case does not state them."""

    values: Sequence[Any]
    kind: str | None = None
    phase: str | None = None


class Expectation:
    """An expectation. The name of a field is its keys joined with dots; places in lists do not count."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.fields = {name for name in _leaves(raw, "") if not _GIVEN.fullmatch(name)}
        self._noted: set[str] = set()
        self._left: set[str] = set()
        self.waived: set[tuple[str, int]] = set()
        """Columns of a field that the query leaves to the engine: name of the field, and position."""

    def take(self, name: str, default: Any = None) -> Any:
        """Returns the value of a field and marks the field as checked."""
        self._noted.add(name)
        return self.peek(name, default)

    def peek(self, name: str, default: Any = None) -> Any:
        """Returns the value of a field or of a group of fields without marking it as checked."""
        value: Any = self.raw
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value

    def note(self, *names: str) -> None:
        """Marks fields as checked."""
        self._noted.update(names)

    def note_all(self, name: str) -> None:
        """Marks a field and all fields in it as checked."""
        self._noted.update(each for each in self.fields if each == name or each.startswith(f"{name}."))

    def leave(self, name: str) -> None:
        """Marks a field as not comparable, even if it was read."""
        self._left.add(name)

    def rows(self, name: str) -> list[ExpectedRow] | None:
        """Returns the rows of a field, or None if the case has none. This does not check kinds and phases."""
        given = self.take(name)
        if given is None:
            return None
        self.note(f"{name}.values", f"{name}.row")
        return self.rows_of(given)

    def rows_of(self, given: Sequence[Any]) -> list[ExpectedRow]:
        """Returns the rows of a list."""
        return [_row(each) for each in given]

    @property
    def unchecked(self) -> list[str]:
        """Returns the fields that were not checked."""
        return sorted((self.fields - self._noted) | self._left)


def alternatives(raw: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns fields with another outcome that is right as well, and the expectation of that outcome."""
    expected = raw.get("expected") or {}
    found = []
    for where, holder in (("", raw), ("expected.", expected)):
        for key, value in holder.items():
            if _ALTERNATIVE.fullmatch(key):
                others = _without(expected, value) if key == "harness_artefacts" else _outcomes(value)
                found += [(where + key, _replaced(raw, expected, other)) for other in others]
    return found


def without_alternatives(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the expectation of one outcome."""
    return {
        key: without_alternatives(value) if key == "expected" and isinstance(value, Mapping) else value
        for key, value in raw.items() if not _ALTERNATIVE.fullmatch(key)
    }  # fmt: skip


def _outcomes(value: Any) -> list[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        return [value]
    if not isinstance(value, list) or not value:
        return []
    if all(isinstance(each, Mapping) and any(name in each for name in _OUTCOMES) for each in value):
        return value
    return [{"rows": value}] if _are_rows(value) else []


def _without(expected: Mapping[str, Any], rows: Any) -> list[dict[str, Any]]:
    """Returns the outcome without these rows."""
    if not _are_rows(rows):
        return []
    left = {name: list(expected[name]) for name in _OUTCOMES if expected.get(name)}
    for wanted in map(_row, rows):
        for given in left.values():
            place = next((at for at, each in enumerate(given) if _row(each).values == wanted.values), None)
            if place is not None:
                del given[place]
    return [left]


def _are_rows(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, list) or (isinstance(each, Mapping) and ("values" in each or "row" in each)) for each in value
    )


def _replaced(raw: Mapping[str, Any], expected: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in expected.items() if not (key in _OUTCOMES and set(other) & set(_OUTCOMES))}
    return {**raw, "expected": {**kept, **other}}


def _row(row: Any) -> ExpectedRow:
    if isinstance(row, Mapping):
        return ExpectedRow(
            row.get("values", row.get("row")) or (), row.get("kind", row.get("row_kind")), row.get("phase")
        )
    return ExpectedRow(row)


def _leaves(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _leaves(inside, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
        for each in value:
            yield from _leaves(each, name)
    elif name and (value is not None or "." in name):
        yield name
