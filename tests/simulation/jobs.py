"""Simulated batch jobs: scalar calls with dead letters, an aggregate with its shuffle, a process table function."""

import datetime
import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from remote_udf.options import OnError
from remote_udf.segments import AppliedField
from spark_client.base.calls import AggregateCall, ErrorPolicy
from spark_client.executor.aggregate.bundles import PartialPlan
from spark_client.executor.aggregate.grouped import map_grouped
from spark_client.executor.aggregate.partial import map_partial
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.process.plan import StatePlan
from spark_client.executor.process.processing import map_processed
from spark_client.executor.scalar.dead_letter import Operator
from spark_client.executor.scalar.rows import ColumnSource, OutputColumn, RowPlan, map_rows, of_partition
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.task import TaskInfo
from tests.simulation.application import Application, TaskAttempt
from tests.simulation.functions import value_of
from tests.simulation.keyed_functions import Counted, Totals
from tests.simulation.oracles import Violation, allowed_codes
from tests.simulation.scenario import JobPlan
from tests.simulation.spark import config_of, options_of, scalar_calls
from tests.spark_client.executor.process.stateful import ROW, state_plan
from udf_server.aggregate.declaration import declare_aggregate

__all__ = ["LETTERS", "AggregateJob", "Job", "LetterJob", "ProcessJob", "check_letters", "process_plan", "row_plan"]

LETTERS = "letters"
"""The directory of dead letters of every job of a world."""
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
TOTALS = declare_aggregate(Totals).spec


def row_plan(plan: JobPlan, columns: Sequence[str], operation: str, driver: str) -> RowPlan:
    """Scalar calls with the first of these columns, whose failed rows become dead letters."""
    policy = ErrorPolicy(OnError.DEAD_LETTER, dead_letter=LETTERS)
    calls = scalar_calls(plan.calls, policy)
    output = [OutputColumn(name, ColumnSource.INPUT, index) for index, name in enumerate(columns)]
    output += [OutputColumn(f"value{index}", ColumnSource.VALUE, index) for index in range(len(calls))]
    operator = Operator(operation, driver)
    return RowPlan(calls, tuple(output), tuple(columns), plan.calls.ordered, operator)


def process_plan(plan: JobPlan, buckets: int) -> StatePlan:
    """A call of `Counted` with rows of k, v, ts."""
    state = _state_plan(buckets)
    options = {**options_of(plan.calls), "size": str(plan.bundle_rows)}
    call = replace(state.plan.call, options=options, config=config_of(plan.calls))
    return replace(state, plan=replace(state.plan, call=call))


@functools.cache
def _state_plan(buckets: int) -> StatePlan:
    return state_plan(Counted, buckets=buckets)[0]


def time_of(plan: JobPlan, x: int) -> datetime.datetime:
    """The event time of a row: about a second per row, and not quite in order."""
    return EPOCH + datetime.timedelta(seconds=100 + x % 1000 + (x * 7) % 5)


class Job:
    """A batch job: what all of them have. After a crash of the driver it is submitted again."""

    def __init__(self, world: Any, plan: JobPlan, number: int) -> None:
        self.world, self.plan = world, plan
        self.name = f"{plan.kind}{number}"
        first_x = 1_000 * (number + 1)
        self.xs = range(first_x, first_x + len(plan.calls.rows))
        for x, behaviour in zip(self.xs, plan.calls.rows, strict=True):
            world.rows.behaviours[x] = behaviour
        self.submissions = 0
        self.results: list[Any] = []
        self.error: Exception | None = None
        self.ended = False

    @property
    def operation(self) -> str:
        return f"{self.submissions:02}{self.name}".ljust(32, "0")

    def run(self, application: Application) -> None:
        """The body of the driver's thread. Raises JobFailed."""
        self.submissions += 1
        if self.plan.calls.begins:
            application.threads.sleep(self.plan.calls.begins)
        self._run(application)

    def check(self) -> None:
        """Compare the results with a model. Raises Violation."""
        raise NotImplementedError

    def _run(self, application: Application) -> None:
        raise NotImplementedError

    def _info(self, stage: int) -> TaskInfo:
        return TaskInfo(job=self.operation, stage=stage)

    def _batches(self, attempt: TaskAttempt, columns: dict[str, pa.Array]) -> Iterator[pa.RecordBatch]:
        """The columns in batches, at the pace of Spark."""
        table = pa.table(columns)
        for batch in table.to_batches(max_chunksize=self.plan.calls.batch_rows):
            if self.plan.calls.pause:
                attempt.worker.threads.sleep(self.plan.calls.pause)
            yield batch

    def _keyed(self, xs: Sequence[int]) -> dict[str, pa.Array]:
        return {"k": pa.array([x % self.plan.keys for x in xs], pa.int64()), "x": pa.array(list(xs), pa.int64())}

    def _require(self, found: Any, expected: Any) -> None:
        if found != expected:
            raise Violation(f"job {self.name} has {found}, not {expected}")


class LetterJob(Job):
    """One stage: every row leaves with its values, or becomes a dead letter."""

    def _run(self, application: Application) -> None:
        rows = row_plan(self.plan, ["x"], self.operation, application.process.name)

        def body_of(partition: int) -> Any:
            xs = self.xs[partition :: self.plan.partitions]

            def body(runtime: Runtime, attempt: TaskAttempt) -> list[Any]:
                found, own = [], of_partition(rows, partition)
                for batch in map_rows(own, self._batches(attempt, {"x": pa.array(list(xs), pa.int64())}), runtime):
                    for x, *values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        found.append((x, values))
                        attempt.passed.append(x)
                return found

            return body

        bodies = [body_of(partition) for partition in range(self.plan.partitions)]
        self.results = application.run_stage(bodies, self._info(0), self.plan.speculates_after)

    def check(self) -> None:
        for x, values in itertools.chain.from_iterable(self.results):
            self._require((x, values), (x, [value_of(x)] * len(values)))
        passed = [[x for x, _ in result] for result in self.results]
        check_letters(self.world, self.name, self.xs, passed, self.operation, None, lambda info: info.job)


def check_letters(
    world: Any, name: str, xs: Sequence[int], passed: Sequence[Sequence[int]], run: str, micro_batch: int | None,
    run_of: Any,
) -> None:  # fmt: skip
    """Every row has left with a value or has one letter, and not both. Raises Violation.

    Attempts at one task may fail for different rows, because of a fault. The letters are those of the last one then.
    """
    left = Counter(itertools.chain.from_iterable(passed))
    written = [each["x"] for each in world.letters if each["_run"] == run and each["_micro_batch"] == micro_batch]
    letters = Counter(written)
    uncertain = set()
    for partition, rows in enumerate(passed):
        for attempt in world.application.attempts:
            info = attempt.info
            if (run_of(info), info.partition, info.stage) != (run, partition, 0) or attempt.error is not None:
                continue
            if micro_batch in (None, info.micro_batch):
                uncertain |= set(rows) ^ set(attempt.passed)
    for x in xs:
        kind = world.rows.behaviours[x].kind
        if letters[x] > 1 or left[x] > 1:
            raise Violation(f"job {name}: row {x} ({kind}) has {letters[x]} letters and left {left[x]} times")
        if letters[x] + left[x] != 1 and (x not in uncertain or kind in ("error", "hang")):
            raise Violation(f"job {name}: row {x} ({kind}) has {letters[x]} letters and left {left[x]} times")
        if left[x] and kind in ("error", "hang"):
            raise Violation(f"job {name}: row {x} ({kind}) has a value")


class AggregateJob(Job):
    """Two stages: rows become accumulators, the shuffle sorts them by key, accumulators become values."""

    def _run(self, application: Application) -> None:
        error = 2 if self.plan.keeps_errors else None
        partial = self._plan(AppliedField.ACCUMULATOR, (1,))
        final = self._plan(AppliedField.FINAL_VALUE, (), accumulator=1, error=error)

        def map_side(partition: int) -> Any:
            xs = self.xs[partition :: self.plan.partitions]
            return lambda runtime, attempt: list(map_partial(partial, self._batches(attempt, self._keyed(xs)), runtime))

        def reduce_side(table: pa.Table) -> Any:
            columns = dict(zip(table.column_names, table.columns, strict=True))
            return lambda runtime, attempt: [
                row for batch in map_grouped(final, self._batches(attempt, columns), runtime)
                for row in batch.to_pylist()
            ]  # fmt: skip

        bodies = [map_side(partition) for partition in range(self.plan.partitions)]
        written = application.run_stage(bodies, self._info(0), self.plan.speculates_after)
        batches = list(itertools.chain.from_iterable(written))
        if not batches:
            return
        rows = pa.Table.from_batches(batches)
        keys = rows.column(0).to_pylist()
        bodies = []
        for reducer in range(self.plan.reducers):
            own = sorted((key, place) for place, key in enumerate(keys) if key % self.plan.reducers == reducer)
            bodies.append(reduce_side(rows.take(pa.array([place for _, place in own], pa.int64()))))
        self.results = application.run_stage(bodies, self._info(1), self.plan.speculates_after)

    def _plan(
        self, applied: AppliedField, columns: tuple[int, ...], accumulator: int | None = None, error: int | None = None
    ) -> PartialPlan:
        plan, keeps_errors = self.plan.calls, self.plan.keeps_errors
        policy = ErrorPolicy(OnError.COLUMN if keeps_errors else OnError.FAIL)
        options = {**options_of(plan), "size": str(self.plan.bundle_rows)}
        call = AggregateCall(TOTALS, 1, options, self.operation, config_of(plan), policy, (applied,))
        source = AggregateInput(call, columns, accumulator=accumulator, error=error)
        names = ("k", "total", "error") if keeps_errors else ("k", "total")
        return PartialPlan((source,), (0,), ("k",), None, None, names)

    def check(self) -> None:
        own: dict[int, list[int]] = {}
        for x in self.xs:
            own.setdefault(x % self.plan.keys, []).append(x)
        rows = sorted((row for result in self.results for row in result), key=lambda row: int(row["k"]))
        self._require([row["k"] for row in rows], sorted(own))
        for row in rows:
            xs, error = own[row["k"]], row.get("error")
            kinds = {self.world.rows.behaviours[x].kind for x in xs}
            if error is None:
                self._require((row, "error" in kinds), ({**row, "total": [sum(xs), len(xs)]}, False))
            elif error["code"] not in allowed_codes(self.world, kinds):
                raise Violation(f"job {self.name}: key {row['k']} with rows of {sorted(kinds)} has {error}")


class ProcessJob(Job):
    """One stage over rows sorted by key and time, as after a shuffle; at the end of the input all timers fire."""

    def _run(self, application: Application) -> None:
        plan = process_plan(self.plan, 1).plan

        def body_of(reducer: int) -> Any:
            own = sorted(
                (x % self.plan.keys, time_of(self.plan, x), x) for x in self.xs
                if x % self.plan.keys % self.plan.reducers == reducer
            )  # fmt: skip
            rows = [{"k": k, "v": x, "ts": ts} for k, ts, x in own]
            columns = {
                "key": pa.array([k for k, _, _ in own], pa.int64()),
                "time": pa.array([ts for _, ts, _ in own], ROW.types[2]),
                "row": pa.array(rows, pa.struct(list(ROW))),
            }
            return lambda runtime, attempt: [
                tuple(row.values())[:3] for batch in map_processed(plan, self._batches(attempt, columns), runtime)
                for row in batch.to_pylist()
            ]  # fmt: skip

        bodies = [body_of(reducer) for reducer in range(self.plan.reducers)]
        self.results = application.run_stage(bodies, self._info(0), self.plan.speculates_after)

    def check(self) -> None:
        expected = []
        for key in {x % self.plan.keys: None for x in self.xs}:
            own = sorted((time_of(self.plan, x), x) for x in self.xs if x % self.plan.keys == key)
            expected += [(key, number, x) for number, (_, x) in enumerate(own, 1)]
            expected.append((key, len(own), -sum(x for _, x in own)))
        self._require(sorted(itertools.chain.from_iterable(self.results)), sorted(expected))
