"""Chain: the parts of one large key in sequence; each is applied to the accumulator of the previous part."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from remote_udf.outcomes import RowError
from remote_udf.segments import ACCUMULATORS, KEY, ROWS, AppliedField
from spark_client.executor.aggregate.bundles import KeyedBundle, PartialPlan, bundle_of
from spark_client.executor.aggregate.segment_columns import (
    accumulator_lists,
    errors_column,
    group_by_runs,
    key_struct,
    rows_column,
    segment_call,
)
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.policy import error_array
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.segments.keys import combined
from spark_client.executor.stream.runtime import Runtime

__all__ = ["Chain"]

_COLUMNS = 3
"""The columns of a call in a batch: accumulators, rows, and the error of an earlier part."""


class Chain:
    """Applies the parts of one key at a time. Its own streams are opened when a key first needs them."""

    def __init__(self, plan: PartialPlan, runtime: Runtime) -> None:
        self._plan = plan
        self._engine = RowEngine(_planned(plan), runtime, ordered=True, merging=False)
        self._accumulators: list[pa.Array | None] = []
        self._errors: list[RowError | None] = []
        self.started = False
        """Whether a part of the key has been applied and more parts follow."""
        self._used = False

    def apply(self, part: pa.Table) -> tuple[KeyedBundle, Completed]:
        """Apply rows of the key, and keep the accumulators and errors for the next part."""
        plan = self._plan
        if not self.started:
            self.forget()
        bundle = bundle_of(plan, part, group_by_runs(np.zeros(1, np.int64), part.num_rows))
        kinds = None if plan.kinds is None else part.column(plan.kinds)
        columns = [key_struct(bundle.keys, plan.key_names, 1)]
        for source, before, error in zip(plan.inputs, self._accumulators, self._errors, strict=True):
            assert source.call.spec.accumulator is not None
            type_ = source.call.spec.accumulator
            errors = error_array(1, {} if error is None else {0: error})
            if source.accumulator is None:
                columns.append(accumulator_lists([before], type_))
                columns.append(rows_column(source, part, bundle.grouping, kinds))
            else:
                own = combined(part.column(source.accumulator)).drop_null()
                columns += [accumulator_lists([before, own], type_), pa.nulls(1)]
            if error is None and source.error is not None:
                errors = errors_column(part.column(source.error), bundle.grouping)
            columns.append(errors)
        names = [KEY, *(f"{index}" for index in range(len(columns) - 1))]
        completed = self._engine.exchange(pa.RecordBatch.from_arrays(columns, names=names))
        self._used = self.started = True
        self._accumulators = [values.flatten()[0] for values in completed.values]
        self._errors = [errors.get(0) for errors in completed.errors]
        return bundle, completed

    def forget(self) -> None:
        """Forget the accumulators and errors, because a new key follows."""
        self.started = False
        self._accumulators = [None] * len(self._plan.inputs)
        self._errors = [None] * len(self._plan.inputs)

    def finish(self) -> None:
        """End the streams and compare the counts."""
        if self._used:
            self._engine.finish()

    def close(self) -> None:
        """Cancel the calls in flight. Safe to call twice."""
        self._engine.close()


def _planned(plan: PartialPlan) -> Sequence[PlannedCall]:
    calls = []
    for index, source in enumerate(plan.inputs):
        first = 1 + index * _COLUMNS
        call = replace(source.call, applied=(AppliedField.ACCUMULATOR, *_more(source.call.applied)))
        rows = {ROWS: first + 1} if source.accumulator is None else {}
        calls.append(segment_call(call, {ACCUMULATORS: first, **rows}, (first + 2,)))
    return calls


def _more(applied: Sequence[AppliedField]) -> list[AppliedField]:
    """The requested fields besides the accumulator, which every part needs."""
    return [field for field in applied if field is not AppliedField.ACCUMULATOR]
