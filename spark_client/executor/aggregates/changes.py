"""A running changelog inside mapInArrow: rows sorted by key become the changes of each key's values.

The rows of a key are held in memory, as those of a window's partition are.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.options import OnError
from remote_udf.row_kinds import RowKind
from spark_client.executor.aggregates.bundles import signs
from spark_client.executor.aggregates.evaluation import Evaluation
from spark_client.executor.aggregates.frames import Steps
from spark_client.executor.aggregates.grouped import net_rows
from spark_client.executor.aggregates.keys import combined, key_codes, run_starts
from spark_client.executor.aggregates.outcomes import check_policy
from spark_client.executor.aggregates.over import row_errors
from spark_client.executor.aggregates.partitions import partitions_of
from spark_client.executor.aggregates.segments import AggregateInput
from spark_client.executor.engine import OpenStream
from spark_client.executor.opening import open_stream

__all__ = ["ChangesPlan", "map_changes"]

Integers = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ChangesPlan:
    """What one operator does.

    A key's values are compared after each `rows` rows of it (None: after each bundle's size), and where
    `version` is a column, instead wherever that changes. `kinds` is the column of row kinds, if the input is
    a changelog itself. Output has the kind, the key's columns, then per call its values and, with on-error
    `column`, its errors.
    """

    inputs: tuple[AggregateInput, ...]
    keys: tuple[int, ...]
    key_names: tuple[str, ...]
    kinds: int | None
    rows: int | None
    version: int | None
    names: tuple[str, ...]


def map_changes(
    plan: ChangesPlan, batches: Iterator[pa.RecordBatch], opening: OpenStream = open_stream
) -> Iterator[pa.RecordBatch]:
    """Input batches, sorted by key, to output batches. Raises FunctionFailed, and what streams raise."""
    retracting = plan.kinds is not None
    with ExitStack() as cleanup:
        evaluations = [
            Evaluation(source, plan.key_names, opening, each_row=True, retracting=retracting) for source in plan.inputs
        ]
        for evaluation in evaluations:
            cleanup.callback(evaluation.close)
        for table, starts in partitions_of(plan.keys, batches):
            history = _History(plan, table, starts)
            if not history.rows:
                continue
            columns = history.values(evaluations)
            size = plan.rows or min(evaluation.size for evaluation in evaluations)
            yield from history.changes(columns, history.looks(size)).to_batches()
        for evaluation in evaluations:
            evaluation.finish()


class _History:
    """Whole keys: their rows that count, one after another, and how many rows the key has after each."""

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
        """Which rows are the first of their key."""
        self._starts = np.flatnonzero(self._firsts)
        self._segment = np.cumsum(self._firsts) - 1
        self._place = np.arange(self.rows) - self._starts[self._segment]
        sign = np.ones(self.rows, np.int64) if self._retracts is None else np.where(self._retracts, -1, 1)
        total = np.cumsum(sign)
        self._count = total - (total - sign)[self._starts][self._segment]

    def values(self, evaluations: Sequence[Evaluation]) -> list[pa.Array]:
        """The calls' columns after each row. Raises FunctionFailed."""
        plan, table = self._plan, self._table
        steps = Steps(
            np.arange(self.rows), self._retracts, np.append(self._starts, self.rows), self._segment, self._place + 1
        )
        keys = [combined(table.column(key)).take(pa.array(self._starts)) for key in plan.keys]
        columns = []
        for source, evaluation in zip(plan.inputs, evaluations, strict=True):
            chosen = source.takes(table)
            own = steps if chosen is None else steps.only(chosen)
            values, errors = evaluation.evaluate(table, own, keys)
            check_policy(source.call, errors, keys, plan.key_names)
            columns.append(values)
            if source.call.policy.on_error is OnError.COLUMN:
                columns.append(row_errors(own, errors, self.rows))
        return columns

    def looks(self, size: int) -> Integers:
        """The rows after which values are compared; the last of each key is one of them."""
        last = np.append(self._firsts[1:], np.True_)
        if self._plan.version is None:
            return np.flatnonzero(last | ((self._place + 1) % size == 0))
        starts = run_starts([self._table.column(self._plan.version)], self.rows)
        last[starts[1:] - 1] = True
        return np.flatnonzero(last)

    def changes(self, columns: Sequence[pa.Array], looks: Integers) -> pa.Table:
        """The output for values that are compared after these rows."""
        codes, _ = key_codes([pa.chunked_array([column]) for column in columns], self.rows)
        here = self._count[looks] > 0
        before = np.roll(looks, 1)
        follows = np.diff(self._segment[looks], prepend=-1) == 0
        there = follows & np.roll(here, 1)
        differs = codes[looks] != codes[before]
        takes = there & (~here | differs)
        gives = here & (~there | differs)
        minus = np.where(here, RowKind.UPDATE_BEFORE.code, RowKind.DELETE.code)[takes]
        plus = np.where(there, RowKind.UPDATE_AFTER.code, RowKind.INSERT.code)[gives]
        places = np.flatnonzero(takes) * 2, np.flatnonzero(gives) * 2 + 1
        order = np.argsort(np.concatenate(places))
        rows = pa.array(np.concatenate((before[takes], looks[gives]))[order])
        kinds = pa.array([kind.value for kind in RowKind]).take(pa.array(np.concatenate((minus, plus))[order]))
        keys = [combined(self._table.column(key)) for key in self._plan.keys]
        return pa.Table.from_arrays([kinds, *(each.take(rows) for each in (*keys, *columns))], list(self._plan.names))
