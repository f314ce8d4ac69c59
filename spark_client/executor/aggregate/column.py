"""Grouped-aggregate Arrow UDFs: the value of one group, or of one frame of a window, in one request."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa

from remote_udf.options import OnError
from spark_client.base.calls import AggregateCall
from spark_client.base.errors import FunctionFailed, PlanError
from spark_client.executor.aggregate.evaluation import Evaluation
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.aggregate.steps import recomputed
from spark_client.executor.engine.policy import failure_text
from spark_client.executor.scalar.column import batch_of, with_errors
from spark_client.executor.stream.runtime import RUNTIME

__all__ = ["evaluate_group"]


def evaluate_group(call: AggregateCall, *arrays: pa.Array) -> object:
    """The value of a group, as Spark's worker takes it: None, a scalar of Arrow, or a list of these.

    Spark has all rows of the group in memory; they are sent in parts if they do not fit into a message.

    Args:
        call: The call. If its number of arguments is not known, each array is one.
        *arrays: An array per argument, with the rows of the group. A call without arguments has one array.

    Raises:
        PlanError: There is no array, because the call has no arguments in SQL, or PySpark does not take the value.
        FunctionFailed: The function failed, and on-error is `fail`.
        StreamError: The server refused the request.
        ServerUnavailable: No server answers.
    """
    table = pa.Table.from_batches([batch_of(call, arrays)])
    count = len(arrays) if call.arguments is None else call.arguments
    policy = replace(call.policy, on_error=OnError.COLUMN)
    source = AggregateInput(replace(call, policy=policy), tuple(range(count)))
    # The group is the frame of a single row.
    steps = recomputed(np.zeros(1, np.int64), np.full(1, table.num_rows))
    if (chosen := source.takes(table)) is not None:
        steps = steps.only(chosen)
    with closing(Evaluation(source, (), (), RUNTIME, each_row=False, retracting=False)) as evaluation:
        (found,) = evaluation.evaluate(table, steps, np.zeros(1, np.int64))
        evaluation.finish()
    if found.errors and call.policy.on_error is OnError.FAIL:
        failed = failure_text(found.errors[0])
        raise FunctionFailed(f"function {call.spec.key}: a group of {table.num_rows} rows failed: {failed}")
    value = with_errors(call, found.values, found.errors)[0]
    try:
        return _handed(value)
    except TypeError:
        raise PlanError(
            f"function {call.spec.key}: a map of a value has a null list or a null map, which PySpark does not take "
            "from an aggregate Arrow UDF; use remote.group_by or remote.sql, or return an empty list or map"
        ) from None


def _handed(value: pa.Scalar) -> object:
    """The value for Spark's worker, where pyarrow makes arrays of scalars, but not of null lists and null maps.

    Raises TypeError for a map with one of these, which has no other form from which pyarrow infers its type.
    """
    if not value.is_valid:
        return None
    if pa.types.is_list(value.type) or pa.types.is_large_list(value.type):
        return [_handed(each) for each in value]
    if pa.types.is_map(value.type):
        pa.array([value])
    return value
