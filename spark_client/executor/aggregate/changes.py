"""A running changelog inside mapInArrow: rows sorted by key become the changes of each key's values.

The rows of a key are held in memory, like those of a window's partition.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.row_kinds import RowKind
from spark_client.executor.aggregate.bundles import net_rows, signs
from spark_client.executor.aggregate.evaluation import Evaluation
from spark_client.executor.aggregate.over import aligned
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.aggregate.steps import FrameSteps
from spark_client.executor.engine.pieces import Integers, LongColumn, cuts
from spark_client.executor.segments.cutting import partitions_of
from spark_client.executor.segments.keys import key_codes, run_starts
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["ChangesPlan", "map_changes"]

Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ChangesPlan:
    """The plan of an operator.

    A key's values are compared after every `rows` rows (None: the size of a bundle), or, if `version` is a column,
    wherever its value changes. `kinds` is the column of row kinds, if the input is itself a changelog. The output has
    the kind, the columns of the key, then per call its values and, if on-error is `column`, its errors.
    """

    inputs: tuple[AggregateInput, ...]
    keys: tuple[int, ...]
    key_names: tuple[str, ...]
    kinds: int | None
    rows: int | None
    version: int | None
    names: tuple[str, ...]


def map_changes(
    plan: ChangesPlan, batches: Iterator[pa.RecordBatch], runtime: Runtime = RUNTIME
) -> Iterator[pa.RecordBatch]:
    """Turn input batches, sorted by key, into output batches. Raises FunctionFailed, and errors of streams."""
    retracting = plan.kinds is not None
    with ExitStack() as cleanup:
        made = (
            Evaluation(source, plan.keys, plan.key_names, runtime, each_row=True, retracting=retracting)
            for source in plan.inputs
        )
        evaluations = [cleanup.enter_context(closing(evaluation)) for evaluation in made]
        for table, starts in partitions_of(plan.keys, batches):
            history = _History(plan, table, starts)
            if not history.rows:
                continue
            for table in history.changes(aligned(history.values(evaluations)), evaluations):
                yield from table.to_batches()
        for evaluation in evaluations:
            evaluation.finish()


class _History:
    """Complete keys: their rows without orphaned retractions, and the number of rows that the key has after each."""

    def __init__(self, plan: ChangesPlan, table: pa.Table, starts: Integers) -> None:
        self._plan = plan
        lengths = np.diff(np.append(starts, table.num_rows))
        owners = np.repeat(np.arange(len(starts)), lengths)
        self._retracts: Marks | None = None
        if plan.kinds is not None:
            sign = signs(table.column(plan.kinds))
            kept, _ = net_rows(sign, starts, 0)
            table, owners, sign = table.filter(pa.array(kept)), owners[kept], sign[kept]
            self._retracts = sign < 0
        self._table = table
        self.rows = table.num_rows
        self._firsts = np.diff(owners, prepend=-1) > 0
        """Whether each row is the first of its key."""
        self._starts = np.flatnonzero(self._firsts)
        self._segment = np.cumsum(self._firsts) - 1
        self._place = np.arange(self.rows) - self._starts[self._segment]
        sign = np.ones(self.rows, np.int64) if self._retracts is None else np.where(self._retracts, -1, 1)
        total = np.cumsum(sign)
        self._count = total - (total - sign)[self._starts][self._segment]

    def values(self, evaluations: Sequence[Evaluation]) -> list[Iterator[list[pa.Array]]]:
        """The columns of each call after each row, in pieces."""
        table = self._table
        steps = FrameSteps(
            np.arange(self.rows), self._retracts, np.append(self._starts, self.rows), self._segment, self._place + 1
        )
        return [
            self._values_of(source, evaluation, steps, source.takes(table))
            for source, evaluation in zip(self._plan.inputs, evaluations, strict=True)
        ]

    def _values_of(
        self, source: AggregateInput, evaluation: Evaluation, steps: FrameSteps, chosen: Marks | None
    ) -> Iterator[list[pa.Array]]:
        own = steps if chosen is None else steps.only(chosen)
        for found in evaluation.evaluate(self._table, own, self._starts):
            yield found.columns(source.call.policy.on_error)

    def looks(self, size: int) -> Integers:
        """The rows after which values are compared; they include the last row of each key."""
        last = np.append(self._firsts[1:], np.True_)
        if self._plan.version is None:
            return np.flatnonzero(last | ((self._place + 1) % size == 0))
        starts = run_starts([self._table.column(self._plan.version)], self.rows)
        last[starts[1:] - 1] = True
        return np.flatnonzero(last)

    def changes(self, pieces: Iterator[list[pa.Array]], evaluations: Sequence[Evaluation]) -> Iterator[pa.Table]:
        """The output for the columns of the calls after each row, in pieces of bounded size."""
        keys = [LongColumn(self._table.column(key)) for key in self._plan.keys]
        widths = sum((key.row_bytes() for key in keys), np.zeros(self.rows, np.int64))
        looks: Integers | None = None
        before: list[pa.Array] = []
        begin = at = 0
        for columns in pieces:
            if looks is None:
                # The size of a bundle is known after the first evaluation.
                looks = self.looks(self._plan.rows or min(evaluation.size for evaluation in evaluations))
            end = begin + len(columns[0])
            to = int(np.searchsorted(looks, end))
            here = looks[at:to]
            if len(here):
                values = [column.take(pa.array(here - begin)) for column in columns]
                follows = bool(before)
                if follows:
                    here = looks[at - 1 : to]
                    values = [pa.concat_arrays(two) for two in zip(before, values, strict=True)]
                yield from self._compared(keys, widths, values, here, follows=follows)
                before = [column.slice(len(column) - 1) for column in values]
            begin, at = end, to

    def _compared(
        self, keys: Sequence[LongColumn], widths: Integers, values: Sequence[pa.Array], looks: Integers, *,
        follows: bool,
    ) -> Iterator[pa.Table]:  # fmt: skip
        """The output for values after these rows. If `follows`, the first row belongs to the previous piece."""
        codes, _ = key_codes([pa.chunked_array([column]) for column in values], len(looks))
        here = self._count[looks] > 0
        same = np.diff(self._segment[looks], prepend=-1) == 0
        there = same & np.roll(here, 1)
        differs = codes != np.roll(codes, 1)
        takes = there & (~here | differs)
        gives = here & (~there | differs)
        if follows:
            takes[0] = gives[0] = False
        minus = np.where(here, RowKind.UPDATE_BEFORE.code, RowKind.DELETE.code)[takes]
        plus = np.where(there, RowKind.UPDATE_AFTER.code, RowKind.INSERT.code)[gives]
        places = np.flatnonzero(takes) * 2, np.flatnonzero(gives) * 2 + 1
        order = np.argsort(np.concatenate(places))
        chosen = np.concatenate((np.flatnonzero(takes) - 1, np.flatnonzero(gives)))[order]
        kinds = pa.array([kind.value for kind in RowKind]).take(pa.array(np.concatenate((minus, plus))[order]))
        for begin, end in cuts(widths[looks[chosen]]):
            rows = chosen[begin:end]
            columns = [key.take(looks[rows]) for key in keys] + [each.take(pa.array(rows)) for each in values]
            yield pa.Table.from_arrays([kinds.slice(begin, end - begin), *columns], list(self._plan.names))
