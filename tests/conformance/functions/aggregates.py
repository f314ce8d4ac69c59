"""Aggregate functions made from words.

    "without accumulator starts from (0, 0); accumulate adds v and 1, retract subtracts v and 1;
     value is sum / count truncated toward zero, null when count is 0"

The words give the accumulator's type, and how each of its fields changes with a row, directly or by its name.
A function described as vectorised is an expression over statistics of its columns: "maximum + minimum".
"""

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

import udf_server as udf
from remote_udf.ddl import parse_type as arrow_type
from tests.conformance.cases import FunctionWords
from tests.conformance.column_types import parse_type
from tests.conformance.functions.aggregate_rules import Rules, of_result
from tests.conformance.functions.statistics import statistic
from udf_server.aggregate.declaration import Aggregate, declare_aggregate

__all__ = ["build_aggregate", "is_aggregate", "without_references"]

_AGGREGATE = re.compile(r"aggregate|udaf|udagg", re.IGNORECASE)
_COLUMNS = re.compile(r"vectori[sz]ed|pandas|arrow", re.IGNORECASE)
_LIKE = re.compile(r"^(?:as|like) (\w+)\b", re.IGNORECASE)


def is_aggregate(words: FunctionWords) -> bool:
    """Whether the words describe an aggregate that is not Spark's own."""
    return not words.builtin and _AGGREGATE.search(words.kind) is not None


def without_references(words: FunctionWords, everything: Sequence[FunctionWords]) -> FunctionWords:
    """Returns the words with the referenced behaviour in place of "as MySum but ..."."""
    match = _LIKE.match(words.behaviour)
    if match is None:
        return words
    same = [other for other in everything if other.name.lower() == match[1].lower() and is_aggregate(other)]
    return replace(words, behaviour=same[0].behaviour) if same else words


def build_aggregate(words: FunctionWords, version: str, everything: Sequence[FunctionWords] = ()) -> Aggregate:
    """The function. Raises NotUnderstood, UnknownType or DeclarationError."""
    told = without_references(words, everything)
    kind = _OfColumns if _COLUMNS.search(words.kind) else _Bundled if "bundle" in words.kind else _classic(told)
    function: Any = kind(told)
    function.name, function.version = words.name, version
    function.description = f"{words.behaviour} Failure: {words.failure or 'none'}."
    return declare_aggregate(function)


class _Told:
    """Types and abilities, as the words give them."""

    def __init__(self, words: FunctionWords) -> None:
        self.rules = Rules(words)
        own: Any = self
        own.parameters = {name: arrow_type(parse_type(type_).ddl) for name, type_ in words.arguments}
        own.returns = arrow_type(self.rules.returns.ddl)
        own.accumulator = arrow_type(self.rules.type.ddl)
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
    """Returns a class whose `accumulate` has the arguments of the words: the server reads them from there."""

    def accumulate(self: Any, accumulator: Any, *row: Any) -> Any:
        return self._changed(accumulator, row, adds=True)

    names = ("self", "accumulator", *(name for name, _ in words.arguments))
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    accumulate.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    accumulate.__annotations__ = {}
    return type("Classic", (_Classic,), {"accumulate": accumulate})


class _OfColumns(udf.VectorizedAggregateFunction):
    """Its accumulator keeps all rows, so that its value can be any expression over the columns."""

    def __init__(self, words: FunctionWords) -> None:
        self._returns = parse_type(words.returns)
        self._statistic = statistic(words.behaviour, tuple(name for name, _ in words.arguments))
        many = any("columns" in type_.lower() for _, type_ in words.arguments)
        types = {
            name: arrow_type("double" if "column" in type_.lower() else parse_type(type_).ddl)
            for name, type_ in words.arguments
        }
        own: Any = self
        own.parameters = {("*" if many else "") + name: type_ for name, type_ in types.items()}
        own.returns = arrow_type(self._returns.ddl)
        row = pa.struct([pa.field(name, type_) for name, type_ in types.items()])
        element = pa.list_(*types.values()) if many else row
        self._many = many
        own.accumulator = pa.struct([pa.field("rows", pa.list_(element))])

    def supports_merging(self) -> bool:
        return True

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        held = [each["rows"] for each in bundle.accumulators.to_pylist()]
        columns = [column.to_pylist() for column in bundle.columns]
        rows = list(zip(*columns, strict=True)) if columns else []
        names = list(self.parameters or ())
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
            values.append(of_result(self._statistic(columns), self._returns))
        return pa.array(values, self.returns)
