"""Small aggregates, and the operators that call them run in this process, without Spark."""

import decimal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import udf_server as udf
from remote_udf.effective_options import canonical
from remote_udf.row_kinds import CODE_TYPE, RowKind
from remote_udf.segments import AppliedField, checked_segments
from spark_client.base.calls import AggregateCall, ErrorPolicy
from spark_client.base.config import ClientConfig
from spark_client.executor.aggregate.bundles import PartialPlan
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.task import TaskInfo
from tests.udf_server.aggregate_functions import RetractsAndMerges
from udf_server.aggregate.declaration import declare_aggregate

DECIMAL = pa.decimal128(20, 4)


class Total(RetractsAndMerges, udf.BundledAggregateFunction):
    """Sum and count of whole numbers; nulls count and add nothing."""

    parameters = "v bigint"
    returns = "struct<sum:bigint,count:bigint>"
    accumulator = "struct<sum:bigint,count:bigint>"

    def bundled_accumulate_retract(self, bundle):
        self.saw([len(segment.rows) for segment in bundle])
        return [self._applied(segment) for segment in bundle]

    def saw(self, lengths):
        """Records the rows per segment of a call."""

    def _applied(self, segment):
        value = {
            "sum": sum(each["sum"] for each in segment.accumulators),
            "count": sum(each["count"] for each in segment.accumulators),
        }
        values = [dict(value)]
        for adds, (v,) in segment.changes():
            if v == -13:
                raise ValueError("thirteen")
            sign = 1 if adds else -1
            value = {"sum": value["sum"] + sign * (v or 0), "count": value["count"] + sign}
            values.append(value)
        return udf.BundledKeySegmentApplied(value, values[0], values[-1], values[1:])


class Counted(Total):
    """Total that records its number of rows. A test sets `rows` to 0 first."""

    rows = 0

    def saw(self, lengths):
        Counted.rows += sum(lengths)


class Sum(Total):
    """Total without merging: its rows must be in one place."""

    name = "sum_in_one_place"

    def supports_merging(self):
        return False


class Trail(udf.AggregateFunction):
    """Every value in order of arrival: neither merges nor retracts."""

    def create_accumulator(self) -> str:
        return ""

    def accumulate(self, accumulator, v: int):
        if v == -13:
            raise ValueError("thirteen")
        return f"{accumulator}{'-' if v is None else v},"

    def get_value(self, accumulator) -> str:
        return accumulator


@dataclass
class Exact:
    total: decimal.Decimal


class DecimalSum(udf.AggregateFunction):
    """The sum of decimals; nulls are skipped."""

    nulls = "skip"
    parameters = {"v": DECIMAL}  # noqa: RUF012
    returns = DECIMAL
    accumulator = pa.struct([pa.field("total", DECIMAL)])

    def create_accumulator(self):
        return {"total": decimal.Decimal(0)}

    def accumulate(self, accumulator, v):
        accumulator["total"] += v

    def retract(self, accumulator, v):
        accumulator["total"] -= v

    def merge(self, accumulator, others):
        for other in others:
            accumulator["total"] += other["total"]

    def get_value(self, accumulator):
        return accumulator["total"]


class Rows(udf.AggregateFunction):
    """The number of rows; takes no arguments."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator):
        return accumulator + 1

    def retract(self, accumulator):
        return accumulator - 1

    def merge(self, accumulator, others):
        return accumulator + sum(others)

    def get_value(self, accumulator) -> int:
        return accumulator


class Keys(udf.BundledAggregateFunction):
    """The key, as the function sees it."""

    parameters = "v bigint"
    returns = "string"
    accumulator = "string"

    def supports_merging(self):
        return True

    def bundled_accumulate_retract(self, bundle):
        return [udf.BundledKeySegmentApplied(repr(segment.key), None, repr(segment.key)) for segment in bundle]


ALL = [Total, Sum, Trail, DecimalSum, Rows, Keys]


def call_of(
    function: Any, *applied: AppliedField, arguments: int = 1, policy: dict[str, Any] | None = None, **options: Any
) -> AggregateCall:
    """A call of the function as a query would hold it."""
    from remote_udf.options import AGGREGATE_OPTIONS

    return AggregateCall(
        spec=declare_aggregate(function).spec,
        arguments=arguments,
        options=canonical(options, source="test", known=(AGGREGATE_OPTIONS,)),
        operation_id="operation",
        config=ClientConfig("test", 10.0),
        policy=ErrorPolicy(**(policy or {})),
        applied=applied or (AppliedField.ACCUMULATOR,),
    )


class Opening(Runtime):
    """Opens streams over a transport, and records them."""

    def __init__(self, transport: Any) -> None:
        super().__init__(self.opened)
        self._transport = transport
        self.streams: list[CallStream] = []

    def opened(self, call: Any, schema: pa.Schema) -> CallStream:
        checked_segments(call.spec, schema)
        self.streams.append(CallStream(call, schema, TaskInfo(), self._transport))
        return self.streams[-1]


Table = dict[str, tuple[pa.DataType, Sequence[Any]]]


def table_of(columns: Table) -> pa.Table:
    arrays = [pa.array(list(values), type_) for type_, values in columns.values()]
    return pa.Table.from_arrays(arrays, names=list(columns))


def batches_of(table: pa.Table, cuts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The table in batches that end at these rows, in any order and as often as they are named."""
    if not table.num_rows:
        yield from table.to_batches()
        return
    ends = sorted({min(cut, table.num_rows) for cut in cuts} | {0, table.num_rows})
    for start, end in zip([0, *ends], ends, strict=False):
        part = table.slice(start, end - start).combine_chunks()
        yield from part.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]


def codes_of(kinds: Sequence[str]) -> tuple[pa.DataType, list[int]]:
    return CODE_TYPE, [RowKind(kind).code for kind in kinds]


def plan_of(
    table: pa.Table, keys: Sequence[str], calls: Sequence[tuple[AggregateCall, Sequence[str], str | None]],
    *, kinds: str | None = None, passed: Sequence[str] | None = None, chained: bool = False,
) -> PartialPlan:  # fmt: skip
    """Calls with their arguments and condition, by the names of the table's columns."""
    place = {name: index for index, name in enumerate(table.column_names)}
    names = [*(keys if passed is None else passed), *(f"a{i}" for i in range(len(calls)))]
    names += [f"e{i}" for i, (call, _, _) in enumerate(calls) if call.policy.on_error != "fail"]
    if kinds is not None and passed is None and not chained:
        names.append("count")
    return PartialPlan(
        inputs=tuple(
            AggregateInput(call, tuple(place[name] for name in columns), None if only is None else place[only])
            for call, columns, only in calls
        ),
        keys=tuple(place[key] for key in keys),
        key_names=tuple(keys),
        kinds=None if kinds is None else place[kinds],
        passed=None if passed is None else tuple(place[name] for name in passed),
        names=tuple(names),
    )


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def by_key(rows: Sequence[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Rows by key, each in input order."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
