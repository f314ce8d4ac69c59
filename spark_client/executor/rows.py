"""Inside mapInArrow: whole rows, several calls at once, ordered or not, every policy."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import pyarrow as pa

from remote_udf.options import OnError
from spark_client.executor.dead_letter import DeadLetterWriter, dead_letters
from spark_client.executor.engine import PlannedCall, RowEngine
from spark_client.executor.groups import Completed
from spark_client.executor.opening import open_stream
from spark_client.executor.policy import PolicyKeeper, error_array
from spark_client.executor.task import current_task

__all__ = ["OutputColumn", "RowPlan", "Source", "map_rows"]


class Source(Enum):
    """Where an output column comes from."""

    INPUT = auto()
    VALUE = auto()
    ERROR = auto()


@dataclass(frozen=True)
class OutputColumn:
    """`index` is a column of the input, or a call."""

    name: str
    source: Source
    index: int


@dataclass(frozen=True)
class RowPlan:
    """What one mapInArrow does: its calls, its output columns, and the input columns of a dead letter."""

    calls: tuple[PlannedCall, ...]
    output: tuple[OutputColumn, ...]
    letter: tuple[int, ...]
    ordered: bool


def map_rows(plan: RowPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Input batches to output batches. Raises what the policies and streams raise."""
    engine = RowEngine(plan.calls, open_stream, ordered=plan.ordered)
    keepers = [PolicyKeeper(planned.call, planned.columns) for planned in plan.calls]
    letters = _Letters(plan)
    try:
        for completed in engine.run(batches):
            for keeper, errors in zip(keepers, completed.errors, strict=True):
                keeper.look(completed.table, errors)
            yield from _output(plan, letters.sort_out(completed)).to_batches()
        for keeper in keepers:
            keeper.finish()
        letters.commit()
    finally:
        letters.abort()


def _output(plan: RowPlan, completed: Completed) -> pa.Table:
    columns = []
    for column in plan.output:
        if column.source is Source.INPUT:
            columns.append(completed.table.column(column.index))
        elif column.source is Source.VALUE:
            columns.append(completed.values[column.index])
        else:
            columns.append(error_array(completed.table.num_rows, completed.errors[column.index]))
    return pa.Table.from_arrays(columns, names=[column.name for column in plan.output])


class _Letters:
    """The dead-letter file of the task, if a call has that policy."""

    def __init__(self, plan: RowPlan) -> None:
        self._plan = plan
        self._wanted = [planned.call.policy.on_error is OnError.DEAD_LETTER for planned in plan.calls]
        self._writer: DeadLetterWriter | None = None

    def sort_out(self, completed: Completed) -> Completed:
        """Writes the rows of which a call failed that has this policy; the others remain."""
        failed = [errors if wanted else {} for wanted, errors in zip(self._wanted, completed.errors, strict=True)]
        if not any(failed):
            return completed
        names = [planned.call.spec.key for planned in self._plan.calls]
        owners, first = dead_letters(failed, names)
        table = completed.table
        inputs = table.select(list(self._plan.letter))
        self._open(inputs.schema).write(inputs, owners, first)
        rest = np.setdiff1d(np.arange(table.num_rows), np.fromiter(first, np.int64, len(first)))
        rows = pa.array(rest)
        place = {int(row): index for index, row in enumerate(rest)}
        return Completed(
            table.take(rows),
            [values.take(rows) for values in completed.values],
            [{place[row]: error for row, error in errors.items() if row in place} for errors in completed.errors],
        )

    def commit(self) -> None:
        """The task has ended well."""
        if self._writer is not None:
            self._writer.commit()

    def abort(self) -> None:
        """Nothing of a task that failed stays. Safe after commit."""
        if self._writer is not None:
            self._writer.abort()

    def _open(self, schema: pa.Schema) -> DeadLetterWriter:
        if self._writer is None:
            call = next(p.call for p, wanted in zip(self._plan.calls, self._wanted, strict=True) if wanted)
            assert call.policy.dead_letter is not None
            self._writer = DeadLetterWriter(call.policy.dead_letter, call.operation_id, current_task(), schema)
        return self._writer
