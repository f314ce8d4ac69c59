"""Planted bugs of what jobs add to scalar calls: dead letters, bundles, accumulators, state and timers."""

from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from spark_client.executor.aggregate import bundles, partial
from spark_client.executor.process import processing
from spark_client.executor.process.state.entries import StoredKeys
from spark_client.executor.process.state.pages import Pages
from spark_client.executor.process.state.processor import BucketProcessor
from spark_client.executor.scalar.dead_letter import DeadLetterWriter, EarlierLetters
from tests.simulation.mutant import Mutant, nothing
from tests.spark_client.executor.process.stateful import Times

__all__ = ["JOB_MUTANTS"]


def _twice(original: Any) -> Any:
    def write(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        original(self, *arguments)

    return write


def _a_file_per_attempt(original: Any) -> Any:
    def begin(self: Any, path: str, operator: Any, spark_schema: str, runtime: Any) -> None:
        original(self, path, operator, spark_schema, runtime)
        self._file += f".{runtime.task().task_attempt}"

    return begin


def _one_temporary_file(original: Any) -> Any:
    def begin(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        self._temporary = self._temporary.rpartition(".")[0]

    return begin


def _in_order_of_arrival(original: Any) -> Any:
    def handle(self: Any, key: Any, rows: Any, times: Any) -> Any:
        return original(self, key, (Row(part=0, place=0, rows=row.rows) for row in rows), times)

    return handle


def _no_errors(original: Any) -> Any:
    return lambda errors, grouping: original(pa.chunked_array([pa.nulls(len(errors), errors.type)]), grouping)


def _doubled(original: Any) -> Any:
    def column(*arguments: Any) -> pa.Array:
        found = original(*arguments)
        return pa.array([each * 2 for each in found.to_pylist()], found.type)

    return column


def _last_forgotten(original: Any) -> Any:
    def combined(plan: Any, bundles: Any, merge: Any) -> Any:
        found = list(bundles)
        yield from original(plan, iter(found[:-1] or found), merge)

    return combined


def _without_state(original: Any) -> Any:
    return lambda processed: None


def _state_only(original: Any) -> Any:
    return lambda self, numbers, after: self._replace("state", numbers, after.state)


def _kept_in_process(original: Any) -> Any:
    def init(self: Any, handle: Any) -> None:
        runtime, task = self._runtime, self._runtime.task()
        kept = vars(runtime.listings).setdefault("state", {})
        key = (task.query, task.partition)
        if key in kept:
            handle.values, handle.maps, handle.timers = kept[key]
        kept[key] = (handle.values, handle.maps, handle.timers)
        original(self, handle)

    return init


def _one_batch_late(original: Any) -> Any:
    def worked(self: Any, engine: Any, table: Any, times: Any, fired: bool) -> Any:
        found = self._handle.getValueState("", "").get()
        seen = getattr(self._handle, "seen", 0) if found is None else (found[3] or 0) // 1000
        return original(self, engine, table, Times(seen or times.watermark // 2, times.now), fired)

    return worked


JOB_MUTANTS = (
    Mutant("a dead letter is written twice", DeadLetterWriter, "write", _twice),
    Mutant("a task that runs again adds a file of dead letters", DeadLetterWriter, "__init__", _a_file_per_attempt),
    Mutant("two attempts write one temporary file", DeadLetterWriter, "__init__", _one_temporary_file),
    Mutant("dead letters of an earlier run of a query stay", EarlierLetters, "delete", nothing),
    Mutant("an error of a key is forgotten in the shuffle", bundles, "errors_column", _no_errors),
    Mutant("accumulators are merged twice", bundles, "accumulators_column", _doubled),
    Mutant("the accumulators of the last bundle are forgotten", partial, "combined_bundles", _last_forgotten),
    Mutant("a part of a key begins without the state before", processing, "after", _without_state),
    Mutant("state of a failed attempt is kept", BucketProcessor, "init", _kept_in_process),
    Mutant("rows are processed in the order of the shuffle", BucketProcessor, "handleInputRows", _in_order_of_arrival),
    Mutant("state is not written", Pages, "store", nothing),
    Mutant("timers stay as they were", StoredKeys, "update", _state_only),
    Mutant("the watermark is one micro-batch late", BucketProcessor, "_worked", _one_batch_late),
)
