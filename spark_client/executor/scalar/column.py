"""A scalar Arrow-iterator UDF: one call, ordered, arrays in and arrays out."""

import itertools
from collections.abc import Iterator

import pyarrow as pa

from remote_udf.functions import VALUE
from remote_udf.options import OnError
from spark_client.base.calls import ScalarCall
from spark_client.base.errors import PlanError
from spark_client.executor.engine.merging import Boundaries
from spark_client.executor.engine.policy import ERROR_TYPE, PolicyKeeper, error_array
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["evaluate_scalar", "result_type"]


def result_type(call: ScalarCall) -> pa.DataType:
    """The type of the call's column: the function's, or `struct<value, error>` if on-error is `column`."""
    if call.policy.on_error is not OnError.COLUMN:
        return call.spec.result
    return pa.struct([pa.field(VALUE, call.spec.result), pa.field("error", ERROR_TYPE)])


def evaluate_scalar(
    call: ScalarCall, batches: Iterator[pa.Array | tuple[pa.Array, ...]], runtime: Runtime = RUNTIME
) -> Iterator[pa.Array]:
    """Yield the function's values: an array for each input array, in order. A tuple has one array per argument.

    Input is read ahead of the output as far as flow control allows, so that many calls are in flight at once. Raises
    FunctionFailed, ErrorBudgetExceeded, StreamError or ServerUnavailable.
    """
    rows = (_batch(call, arrays) for arrays in batches)
    first = next(rows, None)
    if first is None:
        return
    count = call.arguments if call.arguments is not None else first.num_columns if call.spec.parameters else 0
    columns = tuple(range(count))
    engine = RowEngine([PlannedCall(call, columns)], runtime, ordered=True)
    keeper = PolicyKeeper(call, columns)
    type_, boundaries = result_type(call), Boundaries()
    for completed in engine.run(boundaries.noted(itertools.chain([first], rows))):
        errors = completed.errors[0]
        keeper.look(completed.table, errors)
        values = completed.values[0]
        if call.policy.on_error is OnError.COLUMN:
            values = pa.StructArray.from_arrays([values, error_array(len(values), errors)], fields=list(type_))
        yield from boundaries.cut(values)
    keeper.finish()
    # Batches without rows are not sent, so they are still missing in the output.
    yield from boundaries.cut(pa.nulls(0, type_))


def _batch(call: ScalarCall, arrays: pa.Array | tuple[pa.Array, ...]) -> pa.RecordBatch:
    """The arguments as a batch. A call without arguments has one column, for its length. Raises PlanError."""
    columns = list(arrays) if isinstance(arrays, tuple) else [arrays]
    if not columns:
        raise PlanError(
            f"call of {call.spec.key} without arguments in spark.sql: Spark passes no rows to it. Run the query with "
            f"remote.sql, or pass an argument: {call.spec.signature}"
        )
    return pa.RecordBatch.from_arrays(columns, names=[f"a{index}" for index in range(len(columns))])
