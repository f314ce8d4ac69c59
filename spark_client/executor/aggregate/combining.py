"""Merges the accumulators of several bundles of one task before they are shuffled.

Passing a row from one stage of Spark to the next costs many times more than merging it. So, as far as memory allows, a
task emits a key once, and not once per bundle.
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from remote_udf.options import OnError
from remote_udf.segments import AppliedField
from spark_client.base.calls import AggregateCall
from spark_client.executor.aggregate.bundles import PartialPlan
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.segments.keys import key_codes

__all__ = ["HELD_BYTES", "can_combine", "combined_bundles", "merging_inputs"]

HELD_BYTES = 64 << 20
"""The maximum size of accumulators of a task that wait for its next bundles."""
WORTH = 0.75
"""Accumulators are merged if at most this share of them remains."""

Batches = list[pa.RecordBatch]


def can_combine(plan: PartialPlan) -> bool:
    """Whether the plan's output consists only of accumulators by key that can be merged."""
    mergeable = (
        source.call.spec.supports_merging and source.call.applied == (AppliedField.ACCUMULATOR,)
        for source in plan.inputs
    )
    return plan.passed is None and plan.kinds is None and all(mergeable)


def combined_bundles(
    plan: PartialPlan,
    bundles: Iterator[Batches],
    merge: Callable[[PartialPlan, Batches], Batches],
    *,
    held_bytes: int = HELD_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The output of a task's bundles, with as few rows per key as `held_bytes` allow.

    `merge` runs a plan over accumulators. If merging is not worthwhile, because few keys recur, the remaining bundles
    are passed on unchanged.
    """
    held: Batches = []
    several = False
    for batches in bundles:
        several = several or bool(held)
        held += batches
        if _bytes(held) < held_bytes:
            continue
        if several and _repeats(plan, held):
            held = merge(_merging(plan), held)
            several = False
            if _bytes(held) <= held_bytes // 2:
                continue
        elif several:
            yield from held
            for rest in bundles:
                yield from rest
            return
        yield from held
        held = []
    yield from merge(_merging(plan), held) if several and _repeats(plan, held) else held


def _merging(plan: PartialPlan) -> PartialPlan:
    """A plan whose input is the output of `plan`, and whose output has the same columns."""
    inputs = merging_inputs([source.call for source in plan.inputs], len(plan.keys))
    return PartialPlan(inputs, tuple(range(len(plan.keys))), plan.key_names, None, None, plan.names)


def merging_inputs(calls: Sequence[AggregateCall], keys: int) -> tuple[AggregateInput, ...]:
    """The calls over a table of keys, an accumulator per call, and an error per call that keeps errors."""
    inputs, error = [], keys + len(calls)
    for index, call in enumerate(calls):
        keeps_errors = call.policy.on_error is not OnError.FAIL
        inputs.append(AggregateInput(call, (), accumulator=keys + index, error=error if keeps_errors else None))
        error += keeps_errors
    return tuple(inputs)


def _repeats(plan: PartialPlan, held: Batches) -> bool:
    """Whether enough keys occur in more than one bundle."""
    table = pa.Table.from_batches(held)
    _, distinct = key_codes([table.column(index) for index in range(len(plan.keys))], table.num_rows)
    return distinct <= WORTH * table.num_rows


def _bytes(batches: Batches) -> int:
    return sum(batch.nbytes for batch in batches)
