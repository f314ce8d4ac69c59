"""Whole rows in mapInArrow: several calls at once, ordered or unordered, with every error policy."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
import pyarrow as pa

from remote_udf.options import OnError
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import WHOLE_BYTES
from spark_client.executor.engine.policy import PolicyKeeper, error_array, keep_policies
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.scalar.dead_letter import DeadLetterWriter, Operator
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = [
    "ColumnSource",
    "OutputColumn",
    "RowPlan",
    "map_rows",
    "number_of",
    "of_partition",
    "output_table",
    "without_number",
]

NO_OPERATOR = Operator("")
"""The operator of a plan without dead letters."""


class ColumnSource(Enum):
    """The source of an output column."""

    INPUT = auto()
    VALUE = auto()
    ERROR = auto()


@dataclass(frozen=True)
class OutputColumn:
    """`index` is the position of a column of the input, or of a call."""

    name: str
    source: ColumnSource
    index: int


@dataclass(frozen=True)
class RowPlan:
    """The plan of a mapInArrow: its calls, its output columns, and the columns of a dead letter.

    `letter` has the names of the first columns of the input, which a dead letter contains.

    `letter_schema` is Spark's schema of a dead letter as JSON, because Parquet cannot express all of Spark's types.
    """

    calls: tuple[PlannedCall, ...]
    output: tuple[OutputColumn, ...]
    letter: tuple[str, ...]
    ordered: bool
    operator: Operator = NO_OPERATOR
    letter_schema: str = ""


def number_of(batches: Iterator[pa.RecordBatch]) -> tuple[int | None, Iterator[pa.RecordBatch]]:
    """The number of the partition, in the first row's last column, and all batches; None if there are no rows.

    The task does not tell it: after `coalesce` one task runs the operator for several partitions, one after the other,
    and after a union with itself two tasks run it for the same one.
    """
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return None, iter(())
    return first.column(first.num_columns - 1)[0].as_py(), itertools.chain([first], batches)


def without_number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches without their last column."""
    return (batch.select(range(batch.num_columns - 1)) for batch in batches)


def of_partition(plan: RowPlan, number: int | None) -> RowPlan:
    """The plan for the partition of its input with this number."""
    return replace(plan, operator=replace(plan.operator, partition=number))


def map_rows(plan: RowPlan, batches: Iterator[pa.RecordBatch], runtime: Runtime = RUNTIME) -> Iterator[pa.RecordBatch]:
    """Turn input batches into output batches. Raises the errors of the policies and of the streams."""
    engine = RowEngine(plan.calls, runtime, ordered=plan.ordered, most_bytes=WHOLE_BYTES)
    keepers = [PolicyKeeper(planned.call, planned.columns) for planned in plan.calls]
    letters = _Letters(plan, runtime)
    try:
        for completed in engine.run(batches):
            keep_policies(plan.calls, keepers, completed)
            yield from output_table(plan.output, letters.sort_out(completed)).to_batches()
        for keeper in keepers:
            keeper.finish()
        letters.commit()
    finally:
        letters.abort()


def output_table(output: Sequence[OutputColumn], completed: Completed) -> pa.Table:
    """The output columns of complete rows."""
    columns = []
    for column in output:
        if column.source is ColumnSource.INPUT:
            columns.append(completed.table.column(column.index))
        elif column.source is ColumnSource.VALUE:
            columns.append(completed.values[column.index])
        else:
            columns.append(error_array(completed.table.num_rows, completed.errors[column.index]))
    return pa.Table.from_arrays(columns, names=[column.name for column in output])


class _Letters:
    """The dead-letter files of the task: one per directory that a call names."""

    def __init__(self, plan: RowPlan, runtime: Runtime) -> None:
        self._plan = plan
        self._by_path: dict[str, DeadLetterWriter] = {}
        self._writers: list[DeadLetterWriter | None] = []
        """Per call, the writer of its rows if its policy is this one."""
        for planned in plan.calls:
            policy = planned.call.policy
            path = policy.dead_letter if policy.on_error is OnError.DEAD_LETTER else None
            if path is not None and path not in self._by_path:
                self._by_path[path] = DeadLetterWriter(path, plan.operator, plan.letter_schema, runtime)
            self._writers.append(None if path is None else self._by_path[path])

    def sort_out(self, completed: Completed) -> Completed:
        """Write rows in which a call with this policy failed; return the others."""
        guilty: dict[int, int] = {}
        for call, (writer, errors) in enumerate(zip(self._writers, completed.errors, strict=True)):
            if writer is not None:
                for row in errors:
                    guilty.setdefault(row, call)
        if not guilty:
            return completed
        for writer in self._by_path.values():
            rows = sorted(row for row, call in guilty.items() if self._writers[call] is writer)
            if rows:
                failed = completed.table.select(range(len(self._plan.letter))).take(pa.array(rows))
                writer.write(
                    failed.rename_columns(list(self._plan.letter)),
                    [self._plan.calls[guilty[row]].call.spec.key for row in rows],
                    [completed.errors[guilty[row]][row] for row in rows],
                )
        rest = np.setdiff1d(np.arange(completed.table.num_rows), np.fromiter(guilty, np.int64, len(guilty)))
        left = pa.array(rest)
        place = {int(row): index for index, row in enumerate(rest)}
        return Completed(
            completed.table.take(left),
            [values.take(left) for values in completed.values],
            [{place[row]: error for row, error in errors.items() if row in place} for errors in completed.errors],
        )

    def commit(self) -> None:
        """End a successful task."""
        for writer in self._by_path.values():
            writer.commit()

    def abort(self) -> None:
        """End a failed task: its files are removed. Safe after commit."""
        for writer in self._by_path.values():
            writer.abort()
