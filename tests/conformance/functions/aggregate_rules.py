"""The accumulator of an aggregate in words: its initial state, its change by a row, and its value."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.conformance.cases import FunctionWords
from tests.conformance.column_types import ColumnType, parse_type
from tests.conformance.functions.expressions import Expression, NotUnderstood, Scope, read_expression
from tests.conformance.functions.failures import Failure, read_failure

__all__ = ["Rules", "of_result"]

_VERBS = re.compile(r"row-at-a-time|unsupported", re.IGNORECASE)
_START = re.compile(r"\bstarts? (?:from|with|at) (?:an? |the )?(?:\w+ )?(\([^)]*\)|-?[\d.]+|'[^']*')", re.IGNORECASE)
_ADDS = re.compile(r"\b(?:adds|accumulates) ([^;.]+?)(?: for an? accumulate row)?(?=[,;.]|$)", re.IGNORECASE)
_VALUE = re.compile(r"\b(?:the )?(?:final )?(?:value|result) is (.+?)(?=;|$)|^returns (.+?)(?=;|$)", re.IGNORECASE)
_ASIDE = re.compile(r"\s*\([^)]*(?:not null|before any|as |truncat)[^)]*\)", re.IGNORECASE)
_TAIL = re.compile(
    r",? (?:truncated|rounded|cut off)\b[^,;]*|,? (?:null|NULL) (?:when|if|for) [^,;]*|,? 0 (?:when|if) .*"
)
_KNOWN = {
    "sum": "+", "total": "+", "count": "1", "cnt": "1", "n": "1",
    "max": "max", "maximum": "max", "min": "min", "minimum": "min",
}  # fmt: skip


@dataclass(frozen=True)
class _Field:
    """One value of the accumulator: its initial value, and its change by a row."""

    name: str
    start: Any
    change: str
    of: Expression

    def changed(self, value: Any, scope: Scope, sign: int) -> Any:
        given = self.of(scope)
        if given is None:
            return value
        if self.change in ("max", "min"):
            if sign < 0:
                raise ValueError(f"a {self.change} cannot be taken back")
            return given if value is None else {"max": max, "min": min}[self.change](value, given)
        return value + given if sign > 0 else value - given

    def merged(self, one: Any, other: Any) -> Any:
        if self.change in ("max", "min"):
            known = [value for value in (one, other) if value is not None]
            return {"max": max, "min": min}[self.change](known, default=None)
        return one + other


class Rules:
    """The accumulator, its changes and its value, as the words describe them."""

    def __init__(self, words: FunctionWords) -> None:
        self.names = tuple(name for name, _ in words.arguments)
        told = re.sub(r"\s+", " ", words.behaviour)
        if not words.accumulator:
            raise NotUnderstood(f"{words.name}: no type of an accumulator")
        self.type = parse_type(words.accumulator)
        self.returns = parse_type(words.returns)
        parts = dict(zip(self.type.names, self.type.parts, strict=True)) if self.type.names else {"value": self.type}
        starts, changes = self._starts(told, parts), self._changes(told, parts)
        self.fields = [_Field(name, starts[name], *changes[name]) for name in parts]
        self.value = self._value(told, tuple(parts))
        self.failure: Failure = Failure() if _VERBS.search(words.failure) else read_failure(words.failure)

    def _starts(self, told: str, parts: Mapping[str, ColumnType]) -> dict[str, Any]:
        match = _START.search(told)
        given = [part.strip().strip("'") for part in match[1].strip("()").split(",")] if match else []
        starts = {}
        for index, (name, type_) in enumerate(parts.items()):
            text = given[index] if len(given) == len(parts) else "0"
            known = _KNOWN.get(name.lower(), "+")
            starts[name] = None if known in ("max", "min") and not match else _of_type(text, type_)
        return starts

    def _changes(self, told: str, parts: Mapping[str, ColumnType]) -> dict[str, tuple[str, Expression]]:
        match = _ADDS.search(told)
        given = re.split(r"\s*,\s*|\s+and\s+", match[1]) if match else []
        if len(given) == len(parts):
            return {
                name: ("+", read_expression(_numbered(text), self.names))
                for name, text in zip(parts, given, strict=True)
            }
        changes = {}
        for name in parts:
            change = _KNOWN.get(name.lower())
            if change is None:
                raise NotUnderstood(f"how a row changes {name!r}: {told!r}")
            text = "1" if change == "1" else self.names[0]
            changes[name] = ("+" if change == "1" else change, read_expression(text, self.names))
        return changes

    def _value(self, told: str, names: tuple[str, ...]) -> Expression:
        match = _VALUE.search(told)
        if match is None:
            if len(names) == 1:
                return read_expression(names[0], names)
            raise NotUnderstood(f"no value told: {told!r}")
        text = _TAIL.sub("", _ASIDE.sub("", match[1] or match[2])).strip(" ,")
        return read_expression(re.sub(r"\bthe (?=\w)", "", text), names)

    # The steps of a function's execution.

    def started(self, accumulators: Sequence[Any]) -> dict[str, Any]:
        """The accumulators merged, or a new one."""
        state = fresh = {field.name: field.start for field in self.fields}
        for given in accumulators:
            held = given if self.type.names else {"value": given}
            merged = state is not fresh
            state = {f.name: f.merged(state[f.name], held[f.name]) if merged else held[f.name] for f in self.fields}
        return state

    def applied(self, state: dict[str, Any], row: Sequence[Any], *, adds: bool) -> dict[str, Any]:
        scope = Scope(dict(zip(self.names, row, strict=False)))
        if self.failure.strikes(scope):
            raise RuntimeError(self.failure.text(scope.invocation))
        return {f.name: f.changed(state[f.name], scope, 1 if adds else -1) for f in self.fields}

    def accumulator(self, state: dict[str, Any]) -> Any:
        return dict(state) if self.type.names else state["value"]

    def result(self, state: dict[str, Any]) -> Any:
        """The value; null if it would divide by zero."""
        try:
            return of_result(self.value(Scope(state)), self.returns)
        except ArithmeticError:
            return None


def _numbered(text: str) -> str:
    return re.sub(r"\b(?:the )?(?:value|argument) ", "", text.strip())


def _of_type(text: str, type_: ColumnType) -> Any:
    if type_.kind == "string":
        return "" if text == "0" else text
    if type_.kind == "decimal":
        return Decimal(text)
    return float(text) if type_.kind in ("float", "double") else int(text)


def of_result(value: Any, type_: ColumnType) -> Any:
    """Returns the value in the form of the type: fractions of whole numbers are cut off, rows get names."""
    if value is None:
        return None
    if type_.kind == "struct":
        return {n: of_result(v, p) for n, v, p in zip(type_.names, value, type_.parts, strict=True)}
    if type_.kind in ("float", "double"):
        return float(value)
    if type_.kind in ("tinyint", "smallint", "int", "bigint"):
        return int(value)
    return Decimal(str(value)) if type_.kind == "decimal" else value
