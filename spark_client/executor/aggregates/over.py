"""OVER inside mapInArrow: rows sorted by partition and order, with the value of each row's frame.

The rows of a partition are held in memory, as Spark's own Python windows do.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.options import OnError
from remote_udf.outcomes import RowError
from spark_client.executor.aggregates.evaluation import Evaluation
from spark_client.executor.aggregates.frames import Steps, bounds_of, recomputed, slid, stretches
from spark_client.executor.aggregates.keys import combined
from spark_client.executor.aggregates.outcomes import check_policy
from spark_client.executor.aggregates.partitions import partitions_of
from spark_client.executor.aggregates.segments import AggregateInput
from spark_client.executor.engine import OpenStream
from spark_client.executor.opening import open_stream
from spark_client.executor.policy import error_array
from spark_client.over import Frame

__all__ = ["OverInput", "OverPlan", "map_over", "row_errors"]

Integers = npt.NDArray[np.int64]
TABLE_STEPS = 1 << 22
"""Steps that are laid out together, about: frames that are computed one by one may be as many times their rows."""


@dataclass(frozen=True)
class OverInput:
    """A call over a frame.

    `limits` are the columns that hold, for the start and the end of the frame, the row's order plus the offset; None
    where plain arithmetic tells it.
    """

    source: AggregateInput
    frame: Frame
    limits: tuple[int | None, int | None] = (None, None)

    @property
    def grows(self) -> bool:
        """Rows enter the frame and never leave it."""
        return self.frame.start is None

    @property
    def slides(self) -> bool:
        """One frame is had from the one before; otherwise each is computed from its first row on."""
        whole = self.grows and self.frame.end is None
        return not whole and (self.grows or self.source.call.spec.supports_retracting)


@dataclass(frozen=True)
class OverPlan:
    """What one operator does: calls over windows of one partitioning and order.

    Output has the `passed` columns, then per call its values and, with on-error `column`, its errors.
    """

    inputs: tuple[OverInput, ...]
    partition: tuple[int, ...]
    partition_names: tuple[str, ...]
    order: tuple[int, ...]
    passed: tuple[int, ...]
    names: tuple[str, ...]


def map_over(
    plan: OverPlan, batches: Iterator[pa.RecordBatch], opening: OpenStream = open_stream
) -> Iterator[pa.RecordBatch]:
    """Input batches to output batches with the same rows. Raises FunctionFailed, and what streams raise."""
    with ExitStack() as cleanup:
        evaluations = [_evaluation(each, plan, opening) for each in plan.inputs]
        for evaluation in evaluations:
            cleanup.callback(evaluation.close)
        for table, starts in partitions_of(plan.partition, batches):
            columns = [table.column(column) for column in plan.passed]
            for each, evaluation in zip(plan.inputs, evaluations, strict=True):
                columns += _values(plan, each, evaluation, table, starts)
            yield from pa.Table.from_arrays(columns, names=list(plan.names)).to_batches()
        for evaluation in evaluations:
            evaluation.finish()


def _evaluation(each: OverInput, plan: OverPlan, opening: OpenStream) -> Evaluation:
    retracting = each.slides and not each.grows
    return Evaluation(each.source, plan.partition_names, opening, each_row=each.slides, retracting=retracting)


def _values(
    plan: OverPlan, each: OverInput, evaluation: Evaluation, table: pa.Table, starts: Integers
) -> list[pa.Array]:
    """The call's columns for these rows."""
    call = each.source.call
    order = [table.column(column) for column in plan.order]
    limits = [None if column is None else table.column(column) for column in each.limits]
    low, high = bounds_of(each.frame, starts, order, table.num_rows, limits)
    chosen = each.source.takes(table)
    partitions = [combined(table.column(column)) for column in plan.partition]
    values, failures = [], []
    for begin, end in [(0, table.num_rows)] if each.slides else stretches(low, high, TABLE_STEPS):
        part = slice(begin, end)
        steps = slid(low, high, starts) if each.slides else recomputed(low[part], high[part])
        if chosen is not None:
            steps = steps.only(chosen)
        owners = pa.array(begin + np.flatnonzero(np.diff(steps.segment, prepend=-1)))
        keys = [column.take(owners) for column in partitions]
        found, errors = evaluation.evaluate(table, steps, keys)
        check_policy(call, errors, keys, plan.partition_names)
        values.append(found)
        failures.append(row_errors(steps, errors, end - begin))
    columns = [pa.concat_arrays(values)]
    if call.policy.on_error is OnError.COLUMN:
        columns.append(pa.concat_arrays(failures))
    return columns


def row_errors(steps: Steps, errors: Mapping[int, RowError], rows: int) -> pa.Array:
    """Every row has the error of its segment."""
    if not errors:
        return error_array(rows, {})
    segments: Sequence[int] = steps.segment.tolist()
    return error_array(rows, {row: errors[segment] for row, segment in enumerate(segments) if segment in errors})
