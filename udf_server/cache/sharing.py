"""SingleFlight has equal rows in flight called once, over the streams of a server (single flight)."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from remote_udf.durations import format_seconds
from remote_udf.errors import ErrorCode
from remote_udf.options import OutputMode
from remote_udf.outcomes import RowError
from udf_server.cache.cached_batch import BatchAnswers, BatchOwner, CachedBatch, RowWait
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.runners.runner import Runner, RunnerSetup
from udf_server.runners.selection import Indexes

__all__ = ["SingleFlight"]

STUCK_SECONDS = 1.0
"""A row waits this long for the call of another stream whose client does not read, then it is called itself."""

Heirs = dict[CachedBatch, list[int]]
"""Rows that own the keys of others from now on, and must be called."""


class SingleFlight(BatchOwner):
    """Which rows of one stream are called, and which wait. Use it on the server's event loop."""

    def __init__(
        self, setup: RunnerSetup, cache: OutcomeCache, answers: BatchAnswers, budgets: Sequence[object]
    ) -> None:
        self.runner: Runner | None = None
        """Calls the function. None once the stream has ended, because a runner refers to who takes its outcomes."""
        options = dataclasses.replace(setup.options, output_mode=OutputMode.ORDERED, buffer_capacity=None)
        self.policy = (options, *budgets)
        self._setup, self._cache, self._answers = setup, cache, answers
        self._flights = cache.flights
        self._function = setup.function.spec.key

    def call(self, batch: CachedBatch, rows: Indexes) -> None:
        """Have the function called for rows of a batch, unless nothing more is sent."""
        if not len(rows) or self._answers.closed or self.runner is None:
            return
        keyed, _ = batch.split(rows)
        batch.count(misses=len(keyed))
        self.runner.feed(batch.selected(rows))

    def own(self, batch: CachedBatch, rows: Indexes, keys: Sequence[bytes]) -> Indexes:
        """Have the rows wait whose key is in flight. Returns the others, which own their keys from now on."""
        taken = self._flights.own(keys, batch)
        if not taken:
            return rows
        now = self._setup.clock()
        for place in taken:
            row = int(rows[place])
            batch.waits[row] = RowWait(now)
            self._flights.wait(keys[place], (batch, row))
        return np.delete(rows, taken)

    def finish(self, batch: CachedBatch, rows: Indexes, values: pa.Array, errors: Mapping[int, RowError]) -> None:
        """Set outcomes of rows of this stream, and give them to all rows that wait for them."""
        keys: list[bytes | None] = batch.keys[rows].tolist()
        heirs = Heirs()
        if errors:
            failed = []
            for place, row in enumerate(rows.tolist()):
                if row in errors:
                    if (key := keys[place]) is not None and self._flights.owner(key) is batch:
                        self._share_error(key, errors[row])
                        failed.append(key)
                    keys[place] = None
            self._pass_on(batch, failed, heirs)
        waiting: dict[CachedBatch, tuple[list[int], list[int]]] = {}
        for place, waiters in self._flights.land(keys):
            for other, index in waiters:
                indexes, places = waiting.setdefault(other, ([], []))
                indexes.append(index)
                places.append(place)
        self._answers.settle(batch, rows, values, errors)
        for other, (indexes, places) in waiting.items():
            other.runner.share(other, indexes, values.take(pa.array(places)), {})
        _call_heirs(heirs)

    def fail(self, batch: CachedBatch, errors: Mapping[int, RowError]) -> None:
        """Do the same as `finish` for rows that failed, by the index of the row."""
        rows = np.fromiter(errors, np.int64, len(errors))
        self.finish(batch, rows, pa.nulls(len(errors), self._setup.function.spec.result), errors)

    def abandon(self, batches: Sequence[CachedBatch], running: Iterable[bytes] = ()) -> None:
        """Give up the rows of batches that have no outcome, except for the calls of the keys `running`.

        Rows of other streams that wait for them are called.
        """
        for batch in batches:
            for row in batch.waits:
                self._flights.leave(batch.keys[row], (batch, row))
            batch.waits.clear()
        heirs, kept = Heirs(), {*running}
        for batch in batches:
            keys = batch.keys_of(np.flatnonzero(batch.open))
            self._pass_on(batch, (key for key in keys if key is not None and key not in kept), heirs)
        _call_heirs(heirs)

    def release(self, keys: Sequence[bytes]) -> None:
        """Release the claims of keys that were given up while they were claimed, unless another stream calls them."""
        self._cache.release(self._function, [key for key in keys if self._flights.owner(key) is None])

    def check_waits(self, batch: CachedBatch) -> None:
        """End the waiting of rows whose deadline has passed, or whose owner waits for its client."""
        now, limit = self._setup.clock(), self._setup.options.timeout - batch.batch.waited
        late: dict[int, RowError] = {}
        alone: list[int] = []
        running: dict[CachedBatch, set[bytes]] = {}
        for row, wait in batch.waits.items():
            key = batch.keys[row]
            owner: CachedBatch | None = self._flights.owner(key)
            if owner is not wait.owner:
                wait.owner, wait.began = owner, None
            if owner is not None and wait.began is None:
                if owner not in running:
                    running[owner] = set(owner.keys_of(owner.running))
                if key in running[owner]:
                    wait.began = now
                elif now - wait.since > limit and not self._setup.options.cache_required:
                    owner.runner.call_now(owner, key)
            if wait.began is not None and now - wait.began > limit:
                message = f"timed out: the call of an equal row has no result within {format_seconds(limit)}"
                late[row] = RowError(ErrorCode.TIMEOUT, message, 0, True)
            elif owner is None or (
                wait.began is None and now - wait.since > STUCK_SECONDS and owner.runner.is_stuck(self)
            ):
                alone.append(row)
        for row in [*late, *alone]:
            del batch.waits[row]
            self._flights.leave(batch.keys[row], (batch, row))
        self._setup.metrics.not_cached("late", len(late))
        self._answers.fail(batch, late)
        self.call(batch, np.array(alone, np.int64))

    def share(self, batch: CachedBatch, rows: Sequence[int], values: pa.Array, errors: Mapping[int, RowError]) -> None:
        waited = sum(batch.waits.pop(row, None) is not None for row in rows)
        batch.count(shared=waited)
        self._answers.settle(batch, np.array(rows, np.int64), values, errors)

    def inherit(self, batch: CachedBatch, rows: Sequence[int]) -> None:
        for row in rows:
            batch.waits.pop(row, None)
        self.call(batch, np.array(rows, np.int64))

    def call_now(self, batch: CachedBatch, key: bytes) -> None:
        row = batch.elsewhere.pop(key, None)
        if row is not None:
            self.call(batch, np.array([row], np.int64))

    def is_stuck(self, other: object) -> bool:
        return other is not self and self._setup.room.full

    def _share_error(self, key: bytes, error: RowError) -> None:
        """Give the error of a row to those rows that wait for it whose own call would have had the same policy.

        The others wait on, to be called next: those with other options, which may retry it, or with other budgets,
        which may be the reason for it; and all if the deadline of the row has passed or its budget has refused it, for
        theirs may have more.
        """
        if error.code not in (ErrorCode.TIMEOUT, ErrorCode.BUDGET_SPENT, ErrorCode.BUDGET_UNAVAILABLE):
            for other, index in self._flights.waiting(key):
                if other.runner is self or other.runner.policy == self.policy:
                    self._flights.leave(key, (other, index))
                    other.runner.share(other, [index], pa.nulls(1, self._setup.function.spec.result), {index: error})

    def _pass_on(self, batch: CachedBatch, keys: Iterable[bytes], heirs: Heirs) -> None:
        """Give up the keys that the batch owns. Adds the rows to `heirs` that own them now and must be called."""
        released = []
        for key in keys:
            if self._flights.owner(key) is not batch:
                continue
            heir = self._flights.pass_on(key)
            if heir is None:
                released.append(key)
            else:
                heirs.setdefault(heir[0], []).append(heir[1])
        self._cache.release(self._function, released)


def _call_heirs(heirs: Heirs) -> None:
    for batch, rows in heirs.items():
        batch.runner.inherit(batch, sorted(rows))
