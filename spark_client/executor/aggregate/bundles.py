"""Bundles of step (a): a table of rows becomes segments for each call, and their outcomes become output."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.options import OnError
from remote_udf.row_kinds import RowKind
from remote_udf.segments import ACCUMULATORS, KEY, ROWS
from spark_client.executor.aggregate.segment_columns import (
    AggregateInput,
    RowsByKey,
    accumulators_column,
    errors_column,
    rows_column,
    segment_call,
    structs,
)
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import Integers, at_rows
from spark_client.executor.engine.policy import check_policy, error_array
from spark_client.executor.engine.row_engine import PlannedCall

__all__ = ["KeyedBundle", "PartialPlan", "bundle_of", "net_rows", "output_of", "planned_calls", "signs"]

_SIGNS = np.array([-1 if kind.is_retract else 1 for kind in RowKind])


@dataclass(frozen=True)
class PartialPlan:
    """The plan of a partial aggregation.

    `keys` are the columns of the key, `key_names` their names for the function and in errors, `kinds` is the column of
    row kinds of a changelog. Without `passed`, the output has a row per segment: the columns of the key, then an
    accumulator per call, then an error per call whose errors do not fail the job. With `passed`, the output has these
    columns of every input row; accumulators and errors are null except in the last row of each segment. `names` are the
    names of the output columns. Keys with a negative number of net rows are skipped unless `below_zero`.
    """

    inputs: tuple[AggregateInput, ...]
    keys: tuple[int, ...]
    key_names: tuple[str, ...]
    kinds: int | None
    passed: tuple[int, ...] | None
    names: tuple[str, ...]
    below_zero: bool = False


@dataclass(frozen=True)
class KeyedBundle:
    """Rows grouped into segments; `keys` has a row per segment."""

    table: pa.Table
    grouping: RowsByKey
    keys: list[pa.Array]

    def batch(self, plan: PartialPlan) -> pa.RecordBatch:
        """The batch that the engine sends: the key, and the rows for each call."""
        kinds = None if plan.kinds is None else self.table.column(plan.kinds)
        columns = [structs(self.keys, plan.key_names, self.grouping.segments)]
        for source in plan.inputs:
            if source.accumulator is None:
                columns.append(rows_column(source, self.table, self.grouping, kinds))
            else:
                columns.append(accumulators_column(self.table.column(source.accumulator), self.grouping))
        columns += [
            errors_column(self.table.column(source.error), self.grouping)
            for source in plan.inputs
            if source.error is not None
        ]
        return pa.RecordBatch.from_arrays(columns, names=[KEY, *(str(i) for i in range(len(columns) - 1))])


def bundle_of(plan: PartialPlan, table: pa.Table, grouping: RowsByKey) -> KeyedBundle:
    """The bundle of a table with a given grouping into segments."""
    firsts = pa.array(grouping.first_rows())
    return KeyedBundle(table, grouping, [table.column(key).combine_chunks().take(firsts) for key in plan.keys])


def planned_calls(plan: PartialPlan) -> list[PlannedCall]:
    """The calls for the batches of bundles."""
    calls = []
    error = 1 + len(plan.inputs)
    for index, source in enumerate(plan.inputs):
        errors: tuple[int, ...] = ()
        if source.error is not None:
            errors, error = (error,), error + 1
        calls.append(
            segment_call(source.call, {ROWS if source.accumulator is None else ACCUMULATORS: index + 1}, errors)
        )
    return calls


def output_of(
    plan: PartialPlan,
    bundle: KeyedBundle,
    completed: Completed,
    counts: Integers | None = None,
    *,
    ends: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The output for a bundle. If `counts`, the net rows per segment, is given, segments with no net rows are skipped.

    If `ends` is false, this part of the key has no results yet, only rows that are passed on.

    Raises FunctionFailed if the policy requires it.
    """
    for source, errors in zip(plan.inputs, completed.errors, strict=True):
        check_policy(source.call, errors, bundle.keys, plan.key_names)
    segments = bundle.grouping.segments
    results = [values.flatten()[-1] for values in completed.values]
    results += [
        error_array(segments, errors)
        for source, errors in zip(plan.inputs, completed.errors, strict=True)
        if source.call.policy.on_error is not OnError.FAIL
    ]
    if not ends:
        if plan.passed is None:
            return
        results = [pa.nulls(segments, result.type) for result in results]
    if plan.passed is None:
        columns = [*bundle.keys, *results]
        if plan.kinds is not None and counts is None:
            columns.append(pa.array(bundle.grouping.sums(signs(bundle.table.column(plan.kinds)))))
    else:
        columns = [bundle.table.column(column) for column in plan.passed]
        columns += [at_rows(result, bundle.grouping.last_rows(), bundle.table.num_rows) for result in results]
    table = pa.Table.from_arrays(columns, names=list(plan.names))
    if counts is not None:
        table = table.filter(pa.array(counts != 0 if plan.below_zero else counts > 0))
    yield from table.to_batches()


def signs(kinds: pa.ChunkedArray) -> Integers:
    """1 for a row that is added, -1 for one that is retracted."""
    return _SIGNS[kinds.to_numpy()]


def net_rows(signs: Integers, starts: Integers, before: int) -> tuple[npt.NDArray[np.bool_], Integers]:
    """Which rows of a changelog are kept, and the net rows of each key. Each key begins with `before` rows.

    A retraction of a row of a key that has no rows is dropped (Flink: a retraction without state). If the number of
    rows is counted, these are the retractions that reach a new minimum below zero.
    """
    lengths = np.diff(np.append(starts, len(signs)))
    key = np.repeat(np.arange(len(starts)), lengths)
    total = np.cumsum(signs)
    depth = total - np.repeat(total[starts] - signs[starts], lengths) + before
    # The depths of each key are in a range of their own, below that of the previous key: one running minimum suffices.
    band = key * (2 * len(signs) + abs(before) + 2)
    lowest = np.minimum(np.minimum.accumulate(depth - band) + band, 0)
    previous = np.concatenate(([0], lowest[:-1]))
    previous[starts] = 0
    ends = np.append(starts[1:], len(signs)) - 1
    return lowest == previous, (depth - lowest)[ends]
