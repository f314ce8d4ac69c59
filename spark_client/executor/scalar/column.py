"""Scalar Arrow-iterator UDFs, ordered, arrays in and arrays out: one call, or several calls of a row at once."""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from remote_udf.functions import VALUE
from remote_udf.options import OnError
from remote_udf.outcomes import RowError
from spark_client.base.calls import ScalarCall
from spark_client.base.errors import PlanError
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.policy import ERROR_TYPE, PolicyKeeper, error_array, keep_policies
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.runtime import RUNTIME

__all__ = [
    "Boundaries",
    "FusedPlan",
    "batch_of",
    "evaluate_fused",
    "evaluate_last",
    "evaluate_scalar",
    "result_type",
    "with_errors",
]


@dataclass(frozen=True)
class FusedPlan:
    """Several calls of a row, whose columns are those of a Spark function. `output` has the positions of the calls
    whose values are returned; the policies of the calls are to fail, or to return null.
    """

    calls: tuple[PlannedCall, ...]
    output: tuple[int, ...]

    @property
    def type(self) -> pa.DataType:
        """A struct with a field per returned value, named by its position in `output`."""
        types = [self.calls[index].result_type for index in self.output]
        return pa.struct([pa.field(field_of(place), type_) for place, type_ in enumerate(types)])


def field_of(place: int) -> str:
    """The name of a field of the values of fused calls."""
    return f"c{place}"


def result_type(call: ScalarCall, value: pa.DataType | None = None) -> pa.DataType:
    """The type of the call's column: that of its value, or `struct<value, error>` if on-error is `column`.

    `value` is the type of the value; by default that of the function's.
    """
    value = value or call.spec.result
    if call.policy.on_error is not OnError.COLUMN:
        return value
    return pa.struct([pa.field(VALUE, value), pa.field("error", ERROR_TYPE)])


def with_errors(call: ScalarCall, values: pa.Array, errors: Mapping[int, RowError]) -> pa.Array:
    """The call's column, of the type `result_type`. `errors` are those of rows, by position."""
    if call.policy.on_error is not OnError.COLUMN:
        return values
    fields = list(result_type(call, values.type))
    return pa.StructArray.from_arrays([values, error_array(len(values), errors)], fields=fields)


def evaluate_scalar(call: ScalarCall, batches: Iterator[pa.Array | tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """Yield the function's values: an array for each input array, in order. A tuple has one array per argument.

    Input is read ahead of the output as far as flow control allows, so that many calls are in flight at once. Raises
    FunctionFailed, ErrorBudgetExceeded, StreamError or ServerUnavailable.
    """
    rows = _batches(call, batches)
    first = next(rows, None)
    if first is None:
        return
    count = call.arguments if call.arguments is not None else first.num_columns if call.spec.parameters else 0
    planned = PlannedCall(call, tuple(range(count)))
    yield from _evaluate_last([planned], itertools.chain([first], rows))


def evaluate_last(
    calls: Sequence[PlannedCall], batches: Iterator[pa.Array | tuple[pa.Array, ...]]
) -> Iterator[pa.Array]:
    """Yield the values of the last of these calls, like `evaluate_scalar` for one call. Raises what it raises.

    Every call gets all arrays as its arguments.
    """
    rows = _batches(calls[-1].call, batches)
    first = next(rows, None)
    if first is not None:
        every = tuple(range(first.num_columns))
        same = [replace(planned, columns=every) for planned in calls]
        yield from _evaluate_last(same, itertools.chain([first], rows))


def evaluate_fused(fused: FusedPlan, batches: Iterator[pa.Array | tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
    """Yield a struct of the values of several calls, like `evaluate_scalar` for one call. Raises what it raises."""
    type_ = fused.type
    rows = _batches(fused.calls[0].call, batches)

    def column(completed: Completed) -> pa.Array:
        return pa.StructArray.from_arrays([completed.values[index] for index in fused.output], fields=list(type_))

    yield from _evaluate(fused.calls, type_, column, rows)


def _evaluate_last(calls: Sequence[PlannedCall], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.Array]:
    call = calls[-1].call
    type_ = result_type(call, calls[-1].result_type)

    def column(completed: Completed) -> pa.Array:
        return with_errors(call, completed.values[-1], completed.errors[-1])

    yield from _evaluate(calls, type_, column, rows)


def _evaluate(
    calls: Sequence[PlannedCall], type_: pa.DataType, column: Callable[[Completed], pa.Array],
    rows: Iterator[pa.RecordBatch],
) -> Iterator[pa.Array]:  # fmt: skip
    engine = RowEngine(calls, RUNTIME, ordered=True)
    keepers = [PolicyKeeper(planned.call, planned.columns) for planned in calls]
    boundaries = Boundaries()
    for completed in engine.run(boundaries.noted(rows)):
        keep_policies(calls, keepers, completed)
        yield from boundaries.cut(column(completed))
    for keeper in keepers:
        keeper.finish()
    # Batches without rows are not sent, so they are still missing in the output.
    yield from boundaries.cut(pa.nulls(0, type_))


def _batches(call: ScalarCall, batches: Iterator[pa.Array | tuple[pa.Array, ...]]) -> Iterator[pa.RecordBatch]:
    """Raises PlanError for arguments that Python cannot read."""
    try:
        for arrays in batches:
            yield batch_of(call, arrays)
    except KeyError as error:
        # pyarrow has no class for Arrow's month intervals, and raises the number of the type.
        if error.args != (pa.lib.Type_INTERVAL_MONTHS,):
            raise
        raise PlanError(
            f"call of {call.spec.key}: an argument is an INTERVAL YEAR TO MONTH, which cannot be sent to a remote "
            f"function; cast it: {call.spec.signature}"
        ) from None


def batch_of(call: ScalarCall, arrays: pa.Array | tuple[pa.Array, ...]) -> pa.RecordBatch:
    """The arguments as a batch. A call without arguments has one column, for its length. Raises PlanError."""
    columns = list(arrays) if isinstance(arrays, tuple) else [arrays]
    if not columns:
        raise PlanError(
            f"call of {call.spec.key} without arguments in spark.sql: Spark passes no rows to it. Run the query with "
            f"remote.sql, or pass an argument: {call.spec.signature}"
        )
    return pa.RecordBatch.from_arrays(columns, names=[f"a{index}" for index in range(len(columns))])


class Boundaries:
    """The sizes of input batches, for an output that must have one batch for each, in the same order.

    Spark pairs the batches of a scalar function's output with those of its input, without documenting it, if it passes
    columnar input (`spark.sql.execution.arrow.pythonUDF.columnarInput.enabled`, from 4.2 on).
    """

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()

    def noted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches; their sizes are recorded."""
        for batch in batches:
            self._sizes.append(batch.num_rows)
            yield batch

    def cut(self, column: pa.Array) -> Iterator[pa.Array]:
        """Cut the next rows of the output, which must belong to whole input batches, into one array per batch."""
        start = 0
        while self._sizes and start + self._sizes[0] <= len(column):
            size = self._sizes.popleft()
            yield column.slice(start, size)
            start += size
        assert start == len(column)
