"""OVER inside mapInArrow: adds the value of each row's frame to rows that are sorted by partition and order.

The rows of a partition are held in memory, as in Spark's own Python window functions.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_client.executor.aggregate.evaluation import Evaluation
from spark_client.executor.aggregate.frames import Frame, bounds_of
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.aggregate.steps import recomputed, slid, stretches
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.segments.cutting import partitions_of
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["OverInput", "OverPlan", "aligned", "map_over"]

TABLE_STEPS = 1 << 22
"""The approximate maximum of steps that are computed at once: separate frames may have many times more steps than rows.
"""


@dataclass(frozen=True)
class OverInput:
    """A call over a frame.

    `limits` are the columns with the row's order plus the offset, for the start and the end of the frame; None if the
    offset is a plain addition.
    """

    source: AggregateInput
    frame: Frame
    limits: tuple[int | None, int | None] = (None, None)

    @property
    def grows(self) -> bool:
        """Whether rows enter the frame and never leave it."""
        return self.frame.start is None

    @property
    def slides(self) -> bool:
        """Whether each frame is derived from the previous one; otherwise each is computed from its first row."""
        whole = self.grows and self.frame.end is None
        return not whole and (self.grows or self.source.call.spec.supports_retracting)


@dataclass(frozen=True)
class OverPlan:
    """The plan of an operator: calls over windows with the same partitioning and order.

    The output has the `passed` columns, then per call its values and, if on-error is `column`, its errors.
    """

    inputs: tuple[OverInput, ...]
    partition: tuple[int, ...]
    partition_names: tuple[str, ...]
    order: tuple[int, ...]
    passed: tuple[int, ...]
    names: tuple[str, ...]


def map_over(plan: OverPlan, batches: Iterator[pa.RecordBatch], runtime: Runtime = RUNTIME) -> Iterator[pa.RecordBatch]:
    """Turn input batches into output batches with the same rows. Raises FunctionFailed, and errors of streams."""
    with ExitStack() as cleanup:
        evaluations = [cleanup.enter_context(closing(_evaluation(each, plan, runtime))) for each in plan.inputs]
        for table, starts in partitions_of(plan.partition, batches):
            calls = zip(plan.inputs, evaluations, strict=True)
            passed = table.select(list(plan.passed))
            begin = 0
            for columns in aligned([_columns(plan, each, evaluation, table, starts) for each, evaluation in calls]):
                rows = passed.slice(begin, len(columns[0]))
                begin += len(columns[0])
                yield from pa.Table.from_arrays([*rows.columns, *columns], names=list(plan.names)).to_batches()
        for evaluation in evaluations:
            evaluation.finish()


def _evaluation(each: OverInput, plan: OverPlan, runtime: Runtime) -> Evaluation:
    retracting = each.slides and not each.grows
    return Evaluation(
        each.source, plan.partition, plan.partition_names, runtime, each_row=each.slides, retracting=retracting
    )


def _columns(
    plan: OverPlan, each: OverInput, evaluation: Evaluation, table: pa.Table, starts: Integers
) -> Iterator[list[pa.Array]]:
    """The call's columns for the rows of the table, in pieces."""
    order = [table.column(column) for column in plan.order]
    limits = [None if column is None else table.column(column) for column in each.limits]
    low, high = bounds_of(each.frame, starts, order, table.num_rows, limits)
    chosen = each.source.takes(table)
    for begin, end in [(0, table.num_rows)] if each.slides else stretches(low, high, TABLE_STEPS):
        part = slice(begin, end)
        steps = slid(low, high, starts) if each.slides else recomputed(low[part], high[part])
        if chosen is not None:
            steps = steps.only(chosen)
        owners = begin + np.flatnonzero(np.diff(steps.segment, prepend=-1))
        for found in evaluation.evaluate(table, steps, owners):
            yield found.columns(each.source.call.policy.on_error)


def aligned(calls: Sequence[Iterator[list[pa.Array]]]) -> Iterator[list[pa.Array]]:
    """The columns of several calls side by side. Each call yields columns of the same rows, in pieces of any size."""
    held: list[list[pa.Array]] = [[pa.nulls(0)] for _ in calls]
    while True:
        for number, call in enumerate(calls):
            while not len(held[number][0]) and (more := next(call, None)) is not None:
                held[number] = more
        rows = min(len(columns[0]) for columns in held)
        if not rows:
            return
        yield [column.slice(0, rows) for columns in held for column in columns]
        held = [[column.slice(rows) for column in columns] for columns in held]
