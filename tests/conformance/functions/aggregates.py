"""Aggregate functions made from words.

    "without accumulator starts from (0, 0); accumulate adds v and 1, retract subtracts v and 1;
     value is sum / count truncated toward zero, null when count is 0"

The accumulator's type is told, and how each of its fields changes with a row: in words, or by its name.
A function told as vectorised is an expression over what is known of its columns: "maximum + minimum".
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

import udf_server as udf
from remote_udf.ddl import parse_type as arrow_type
from tests.conformance.cases import FunctionWords
from tests.conformance.column_types import ColumnType, parse_type
from tests.conformance.functions.expressions import Expression, NotUnderstood, Scope, read_expression
from tests.conformance.functions.failures import Failure, read_failure
from tests.conformance.functions.statistics import statistic
from udf_server.aggregates.declaration import Aggregate, declare_aggregate

__all__ = ["build_aggregate", "is_aggregate", "without_references"]

_AGGREGATE = re.compile(r"aggregate|udaf|udagg", re.IGNORECASE)
_COLUMNS = re.compile(r"vectori[sz]ed|pandas|arrow", re.IGNORECASE)
_VERBS = re.compile(r"row-at-a-time|unsupported", re.IGNORECASE)
_LIKE = re.compile(r"^(?:as|like) (\w+)\b", re.IGNORECASE)
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


def is_aggregate(words: FunctionWords) -> bool:
    """Whether these are words for an aggregate that is not Spark's own."""
    return not words.builtin and _AGGREGATE.search(words.kind) is not None


def without_references(words: FunctionWords, everything: Sequence[FunctionWords]) -> FunctionWords:
    """With the behaviour itself in place of "as MySum but ..."."""
    match = _LIKE.match(words.behaviour)
    if match is None:
        return words
    same = [other for other in everything if other.name.lower() == match[1].lower() and is_aggregate(other)]
    return replace(words, behaviour=same[0].behaviour) if same else words


def build_aggregate(words: FunctionWords, version: str, everything: Sequence[FunctionWords] = ()) -> Aggregate:
    """The function. Raises NotUnderstood, UnknownType or DeclarationError."""
    told = without_references(words, everything)
    kind = _OfColumns if _COLUMNS.search(words.kind) else _Bundled if "bundle" in words.kind else _classic(told)
    function = kind(told)
    function.name, function.version = words.name, version
    function.description = f"{words.behaviour} Failure: {words.failure or 'none'}."
    return declare_aggregate(function)


@dataclass(frozen=True)
class _Field:
    """One value of the accumulator: what it starts from, and how a row changes it."""

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


class _Rules:
    """The accumulator, its changes and its value, as told."""

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

    # What functions do with it.

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
        """The value; null where it would divide by zero."""
        try:
            return _of_result(self.value(Scope(state)), self.returns)
        except ArithmeticError:
            return None


class _Told:
    """Types and abilities, as told."""

    def __init__(self, words: FunctionWords) -> None:
        self.rules = _Rules(words)
        self.parameters = {name: arrow_type(parse_type(type_).ddl) for name, type_ in words.arguments}
        self.returns = arrow_type(self.rules.returns.ddl)
        self.accumulator = arrow_type(self.rules.type.ddl)
        told = f"{words.kind} {words.behaviour}".lower()
        self._retracts = words.can_retract if words.can_retract is not None else "retract" in told
        self._merges = words.can_merge if words.can_merge is not None else "merge" in told

    def supports_retracting(self) -> bool:
        return self._retracts

    def supports_merging(self) -> bool:
        return self._merges


class _Bundled(_Told, udf.BundledAggregateFunction):
    def bundled_accumulate_retract(self, bundle: list[udf.BundledKeySegment]) -> list[udf.BundledKeySegmentApplied]:
        return [self._segment(segment) for segment in bundle]

    def _segment(self, segment: udf.BundledKeySegment) -> udf.BundledKeySegmentApplied:
        rules = self.rules
        state = rules.started(segment.accumulators)
        starting, updated = rules.result(state), []
        for adds, row in segment.changes():
            state = rules.applied(state, row, adds=adds)
            updated.append(rules.result(state))
        wanted = updated if segment.updated_values_after_each_row else []
        return udf.BundledKeySegmentApplied(rules.accumulator(state), starting, rules.result(state), wanted)

    def create_accumulator(self) -> Any:
        raise RuntimeError("unsupported")

    def accumulate(self, accumulator: Any, *arguments: Any) -> Any:
        raise RuntimeError("unsupported")

    def get_value(self, accumulator: Any) -> Any:
        raise RuntimeError("unsupported")


class _Classic(_Told, udf.AggregateFunction):
    def create_accumulator(self) -> Any:
        return self.rules.accumulator(self.rules.started([]))

    def retract(self, accumulator: Any, *row: Any) -> Any:
        return self._changed(accumulator, row, adds=False)

    def merge(self, accumulator: Any, others: Sequence[Any]) -> Any:
        return self.rules.accumulator(self.rules.started([accumulator, *others]))

    def get_value(self, accumulator: Any) -> Any:
        return self.rules.result(self.rules.started([accumulator]))

    def _changed(self, accumulator: Any, row: Sequence[Any], *, adds: bool) -> Any:
        return self.rules.accumulator(self.rules.applied(self.rules.started([accumulator]), row, adds=adds))


def _classic(words: FunctionWords) -> type[_Classic]:
    """A class whose `accumulate` has the arguments told: the server takes them from there."""

    def accumulate(self: Any, accumulator: Any, *row: Any) -> Any:
        return self._changed(accumulator, row, adds=True)

    names = ("self", "accumulator", *(name for name, _ in words.arguments))
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    accumulate.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    accumulate.__annotations__ = {}
    return type("Classic", (_Classic,), {"accumulate": accumulate})


class _OfColumns(udf.VectorizedAggregateFunction):
    """Its accumulator is all there was, so that its value can be any expression over the columns."""

    def __init__(self, words: FunctionWords) -> None:
        self._returns = parse_type(words.returns)
        self._statistic = statistic(words.behaviour, tuple(name for name, _ in words.arguments))
        many = any("columns" in type_.lower() for _, type_ in words.arguments)
        types = {
            name: arrow_type("double" if "column" in type_.lower() else parse_type(type_).ddl)
            for name, type_ in words.arguments
        }
        self.parameters = {("*" if many else "") + name: type_ for name, type_ in types.items()}
        self.returns = arrow_type(self._returns.ddl)
        row = pa.struct([pa.field(name, type_) for name, type_ in types.items()])
        element = pa.list_(*types.values()) if many else row
        self._many = many
        self.accumulator = pa.struct([pa.field("rows", pa.list_(element))])

    def supports_merging(self) -> bool:
        return True

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        held = [each["rows"] for each in bundle.accumulators.to_pylist()]
        columns = [column.to_pylist() for column in bundle.columns]
        rows = list(zip(*columns, strict=True)) if columns else []
        names = list(self.parameters)
        states = []
        for index in range(bundle.segments):
            before = held[bundle.accumulator_offsets[index] : bundle.accumulator_offsets[index + 1]]
            state = [row for rows_before in before for row in rows_before]
            own = rows[bundle.offsets[index] : bundle.offsets[index + 1]]
            state += [list(row) if self._many else dict(zip(names, row, strict=True)) for row in own]
            states.append({"rows": state})
        return pa.array(states, self.accumulator)

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        values = []
        for each in accumulators.to_pylist():
            rows = [row if self._many else list(row.values()) for row in each["rows"]]
            columns = [[value for value in column if value is not None] for column in zip(*rows, strict=True)]
            values.append(_of_result(self._statistic(columns), self._returns))
        return pa.array(values, self.returns)


def _numbered(text: str) -> str:
    return re.sub(r"\b(?:the )?(?:value|argument) ", "", text.strip())


def _of_type(text: str, type_: ColumnType) -> Any:
    if type_.kind == "string":
        return "" if text == "0" else text
    if type_.kind == "decimal":
        return Decimal(text)
    return float(text) if type_.kind in ("float", "double") else int(text)


def _of_result(value: Any, type_: ColumnType) -> Any:
    """The value as the type has it: whole numbers are cut off, rows get names."""
    if value is None:
        return None
    if type_.kind == "struct":
        return {n: _of_result(v, p) for n, v, p in zip(type_.names, value, type_.parts, strict=True)}
    if type_.kind in ("float", "double"):
        return float(value)
    if type_.kind in ("tinyint", "smallint", "int", "bigint"):
        return int(value)
    return Decimal(str(value)) if type_.kind == "decimal" else value
