"""CachedRunner answers rows from the cache and has another runner call the function for the others.

It runs on the server's event loop, between the stream and the runner of the function's execution. A row whose key has
an entry gets its outcome at once. A row that is equal to one in flight waits for its outcome. All others are called.
"""

import asyncio
import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from remote_udf.durations import format_seconds
from remote_udf.errors import ErrorCode
from remote_udf.options import CacheMode, CacheScope, OutputMode
from remote_udf.outcomes import RowError
from udf_server.cache.cached_batch import CachedBatch
from udf_server.cache.collecting import Collected, CollectingWriter
from udf_server.cache.entries import Entries, Found
from udf_server.cache.keying import Keying
from udf_server.cache.keys import RowKeys
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.runners.outputs import Output
from udf_server.runners.runner import InputBatch, Runner, RunnerSetup
from udf_server.runners.selection import Indexes, Selection

__all__ = ["CachedRunner"]

LOOKED_UP_ROWS = 2_048
"""Maximum number of rows of one look-up, so that the event loop does other work in between."""
STUCK_SECONDS = 1.0
"""A row waits this long for the call of another stream whose client does not read, then it is called itself."""
POLL_SECONDS = (0.02, 0.5)
"""How often the outcomes of other servers' calls are looked up: at first, and at the lowest rate."""
_KEPT_ERRORS = (ErrorCode.FUNCTION_ERROR, ErrorCode.RESULT_TYPE)

Place = tuple[CachedBatch, int]


class CachedRunner(Runner):
    """Calls the function for the rows of one stream, unless their outcomes are in the cache."""

    def __init__(
        self, setup: RunnerSetup, make: Callable[[RunnerSetup], Runner], cache: OutcomeCache, caller: str = ""
    ) -> None:
        """`make` creates the runner that calls the function. `caller` is the identity of the stream's caller."""
        super().__init__(setup)
        options, spec = setup.options, setup.function.spec
        self._cache, self._flights, self._function = cache, cache.flights, spec.key
        self._ordered = options.output_mode is OutputMode.ORDERED
        self._ttl = options.cache_ttl or 0.0
        self._refresh = options.cache_mode is CacheMode.REFRESH
        scope = options.cache_scope or (CacheScope.CALLER if cache.callers_differ else CacheScope.ALL)
        private = caller if scope is CacheScope.CALLER else ""
        self._keying = Keying(setup, RowKeys(setup.function, setup.arguments.targets, options.cache_key, private))
        self._entries = Entries(spec.result, cache.wall, cache.seal, cache.unseal)
        self.policy = dataclasses.replace(options, output_mode=OutputMode.ORDERED, buffer_capacity=None)
        self._arrived: collections.deque[InputBatch] = collections.deque()
        self._looking = False
        self._batches: dict[int, CachedBatch] = {}
        """The batches with rows that have no outcome or were not sent, by their first row."""
        self._claim = setup.room.claim()
        """The bytes of the outcomes that are held here."""
        self._closed = False
        writer = CollectingWriter(
            spec.result, max_message_bytes=setup.writer.limit, room=setup.room, entries=self._entries, keys=self._keys
        )
        inner = dataclasses.replace(
            setup, options=dataclasses.replace(options, output_mode=OutputMode.UNORDERED), writer=writer,
            emit=self._collected,
        )  # fmt: skip
        self._runner = make(inner)
        self.tick_seconds = self._runner.tick_seconds

    def feed(self, batch: InputBatch) -> None:
        self._arrived.append(batch)
        if not self._looking:
            self._looking = True
            self.setup.spawn(self._look_up_all())

    def tick(self) -> None:
        self._runner.tick()
        for batch in list(self._batches.values()):
            if batch.waits:
                self._check_waits(batch)
        if self.setup.room.full:
            self._send_held()

    def cancel(self) -> None:
        self._closed = True
        self._runner.cancel()
        self._arrived.clear()
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            for row in batch.waits:
                self._flights.leave(_key(batch, row), (batch, row))
        heirs: dict[CachedBatch, list[int]] = {}
        for batch in batches.values():
            self._pass_on(batch, sorted(batch.owned), heirs)
        _call_heirs(heirs)

    async def _look_up_all(self) -> None:
        """Look up the batches that have arrived, one after the other."""
        while self._arrived:
            batch = self._arrived.popleft()
            columns, keys, skipped = await self._keying.read(batch)
            if self._closed:
                return
            self._batches[batch.first_row] = cached = CachedBatch(self, batch, columns, keys)
            if skipped is not None:
                self._claim.add(cached.skip(skipped, self.function.spec.result))
                if not cached.left:
                    self._send(cached)
            await self._look_up(cached)
        self._looking = False

    async def _look_up(self, batch: CachedBatch) -> None:
        """Answer the rows that have an entry; wait for those in flight; call the others."""
        rows = np.flatnonzero(batch.open)
        missed: list[int] = []
        uncached = [row for row in rows.tolist() if batch.keys[row] is None]
        self.setup.metrics.uncached(len(uncached))
        keyed = rows if not uncached else np.setdiff1d(rows, uncached)
        for start in range(0, len(keyed), LOOKED_UP_ROWS):
            await self._until_free()
            part = keyed[start : start + LOOKED_UP_ROWS].tolist()
            if not self._refresh:
                part = await self._answer(batch, part)
            missed += self._depart(batch, part)
        if not self._cache.store.shared or self._refresh:
            self._call(batch, sorted([*uncached, *missed]))
            return
        self._call(batch, uncached)
        others = await self._claim_and_call(batch, missed)
        if others:
            self.setup.spawn(self._await_others(batch, others))

    async def _answer(self, batch: CachedBatch, rows: list[int]) -> list[int]:
        """Answer the rows that have an entry. Returns the others."""
        keys = [_key(batch, row) for row in rows]
        entries = await self._cache.get(self._function, keys, self.options.cache_timeout)
        if self._closed or not any(entries):
            return rows
        found = self._read(entries, keys)
        hit = [rows[place] for place in found.rows]
        failed = {rows[place]: error for place, error in found.errors.items()}
        batch.count(hits=len(hit) + len(failed))
        self._settle(batch, np.array(hit, np.int64), found.values, {})
        self._settle(batch, *_failed(failed, found.values.type), failed)
        answered = {*hit, *failed}
        return [row for row in rows if row not in answered] if len(answered) < len(rows) else []

    def _depart(self, batch: CachedBatch, rows: Sequence[int]) -> list[int]:
        """Let the rows wait whose key is in flight. Returns the others, which own their keys from now on."""
        if self._closed:
            return []
        join, keys, now, mine = self._flights.join, batch.keys, self.setup.clock(), []
        for row in rows:
            if join(keys[row], (batch, row)):  # type: ignore[arg-type] # these rows have keys
                mine.append(row)
            else:
                batch.waits[row] = now
        batch.owned.update(mine)
        return mine

    async def _await_others(self, batch: CachedBatch, rows: list[int]) -> None:
        """Wait for the outcomes of calls of other servers. Call the rows whose claim ends without an outcome."""
        pause, until = POLL_SECONDS[0], self.setup.clock() + self.timeout_of(batch.batch)
        while rows and not self._closed:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, POLL_SECONDS[1])
            keys = [_key(batch, row) for row in rows]
            entries = await self._cache.get(self._function, keys, self.options.cache_timeout)
            if self._closed:
                return
            found = self._read(entries, keys)
            failed = {rows[place]: error for place, error in found.errors.items()}
            there = [rows[place] for place in found.rows]
            batch.count(shared=len(there) + len(failed))
            self._finish(batch, np.array(there, np.int64), found.values, {})
            self._finish(batch, *_failed(failed, found.values.type), failed)
            # An entry that is there and cannot be used is no reason to wait.
            useless = [row for row, entry in zip(rows, entries, strict=True) if entry is not None and batch.open[row]]
            self._call(batch, useless)
            rows = [row for row, entry in zip(rows, entries, strict=True) if entry is None and batch.open[row]]
            if self.setup.clock() >= until:
                # The other server takes longer than this row may take, so the row is called twice rather than too late.
                self._call(batch, rows)
                return
            rows = await self._claim_and_call(batch, rows)

    async def _claim_and_call(self, batch: CachedBatch, rows: list[int]) -> list[int]:
        """Call the rows that this server may call. Returns the others."""
        if not rows:
            return []
        keys = [_key(batch, row) for row in rows]
        try:
            granted = await self._cache.claim(self._function, keys, self.options.cache_timeout)
        except asyncio.CancelledError:
            # The store may grant them all the same.
            self._cache.release(self._function, keys)
            raise
        self._call(batch, [row for row, mine in zip(rows, granted, strict=True) if mine])
        return [row for row, mine in zip(rows, granted, strict=True) if not mine]

    def _call(self, batch: CachedBatch, rows: Sequence[int]) -> None:
        """Have the function called for these rows."""
        if not rows or self._closed:
            return
        batch.count(misses=sum(batch.keys[row] is not None for row in rows))
        selection = Selection(batch.columns, np.array(rows, np.int64), batch.starts, self.setup.clock)
        self._runner.feed(dataclasses.replace(batch.batch, data=None, selection=selection))

    def _collected(self, output: Output) -> None:
        """Take outcomes of rows that were called."""
        assert isinstance(output, Collected)
        self.setup.room.give_back(output.size)
        batch = self._batches.get(output.batch)
        if output.entries:
            self._cache.keep(self._function, output.entries, self._ttl)
        if batch is None or self._closed:
            return
        batch.count(calls=output.calls, retries=output.retries)
        rows = output.indexes
        errors = {int(rows[place]): error for place, error in output.taken.errors.items()}
        self._keep_errors(batch, errors)
        self._finish(batch, rows, output.taken.values, errors)

    def _keep_errors(self, batch: CachedBatch, errors: Mapping[int, RowError]) -> None:
        if not self.options.cache_errors:
            return
        for row, error in errors.items():
            key = batch.keys[row]
            if key is not None and error.code in _KEPT_ERRORS and not error.retryable and error.attempts:
                entry = self._entries.of_error(error, key)
                self._cache.keep(self._function, [(key, entry)], self.options.cache_errors)

    def _finish(self, batch: CachedBatch, rows: Indexes, values: pa.Array, errors: Mapping[int, RowError]) -> None:
        """Set outcomes of rows of this stream, and give them to all rows that wait for them."""
        waiting: dict[CachedBatch, tuple[list[int], list[int]]] = {}
        heirs: dict[CachedBatch, list[int]] = {}
        for place, row in enumerate(rows.tolist()):
            key = batch.keys[row]
            if key is None:
                continue
            if row in errors:
                self._land_error(batch, row, errors[row], heirs)
                continue
            batch.owned.discard(row)
            for other, index in self._flights.land(key):
                indexes, places = waiting.setdefault(other, ([], []))
                indexes.append(index)
                places.append(place)
        self._settle(batch, rows, values, errors)
        for other, (indexes, places) in waiting.items():
            other.runner.share(other, indexes, values.take(pa.array(places)), {})
        _call_heirs(heirs)

    def _land_error(self, batch: CachedBatch, row: int, error: RowError, heirs: dict[CachedBatch, list[int]]) -> None:
        """End the call of a row that failed.

        Rows that wait for it get its error if their own call would have been retried in the same way. If the deadline
        of the row has passed, or if other options apply to them, one of them is called next.
        """
        key = _key(batch, row)
        if self._flights.owner(key) != (batch, row):
            return
        if error.code is not ErrorCode.TIMEOUT:
            for other, index in self._flights.waiting(key):
                if other.runner is self or other.runner.policy == self.policy:
                    self._flights.leave(key, (other, index))
                    other.runner.share(other, [index], pa.nulls(1, self.function.spec.result), {index: error})
        self._pass_on(batch, [row], heirs)

    def _pass_on(self, batch: CachedBatch, rows: Iterable[int], heirs: dict[CachedBatch, list[int]]) -> None:
        """Give up the keys of rows. Adds the rows to `heirs` that own the keys now and must be called."""
        released = []
        for row in rows:
            key = _key(batch, row)
            batch.owned.discard(row)
            if self._flights.owner(key) != (batch, row):
                continue
            heir = self._flights.pass_on(key, (batch, row))
            if heir is None:
                released.append(key)
            else:
                heirs.setdefault(heir[0], []).append(heir[1])
        self._cache.release(self._function, released)

    def inherit(self, batch: CachedBatch, rows: Sequence[int]) -> None:
        """Call rows that waited for another row, which has no outcome for them."""
        for row in rows:
            batch.waits.pop(row, None)
        batch.owned.update(rows)
        self._call(batch, rows)

    def share(self, batch: CachedBatch, rows: Sequence[int], values: pa.Array, errors: Mapping[int, RowError]) -> None:
        """Set the outcomes of rows that waited for equal rows."""
        waited = sum(batch.waits.pop(row, None) is not None for row in rows)
        batch.count(shared=waited)
        self._settle(batch, np.array(rows, np.int64), values, errors)

    def _check_waits(self, batch: CachedBatch) -> None:
        """End the waiting of rows whose deadline has passed, or whose owner waits for its client."""
        now, limit = self.setup.clock(), self.timeout_of(batch.batch)
        late: dict[int, RowError] = {}
        alone = []
        for row, since in list(batch.waits.items()):
            owner: Place | None = self._flights.owner(_key(batch, row))
            began = owner[0].starts.get(owner[1]) if owner is not None else None
            if began is not None and now - max(began, since) > limit:
                message = f"timed out: the call of an equal row has no result within {format_seconds(limit)}"
                late[row] = RowError(ErrorCode.TIMEOUT, message, 0, True)
            elif owner is None or (began is None and now - since > STUCK_SECONDS and owner[0].runner.is_stuck(self)):
                alone.append(row)
        for row in [*late, *alone]:
            del batch.waits[row]
            self._flights.leave(_key(batch, row), (batch, row))
        if late:
            self._settle(batch, *_failed(late, self.function.spec.result), late)
        self._call(batch, alone)

    def is_stuck(self, other: object) -> bool:
        """Whether rows of `other` should not wait for this stream: its client does not read, so nothing is called."""
        return other is not self and self.setup.room.full

    def _settle(self, batch: CachedBatch, rows: Indexes, values: pa.Array, errors: Mapping[int, RowError]) -> None:
        """Set the outcomes of those rows that have none, and send what should be sent now."""
        if self._closed or not len(rows):
            return
        still = batch.open[rows]
        if not still.all():
            # A row that was called although it waited may have got an outcome meanwhile.
            places = np.flatnonzero(still)
            rows, values = rows[places], values.take(pa.array(places))
            errors = {row: error for row, error in errors.items() if batch.open[row]}
        self._claim.add(batch.settle(rows, values, errors))
        if not batch.left or not self._ordered:
            self._send(batch)
        elif self._claim.held >= self.setup.writer.piece_bytes or self.setup.room.full:
            self._send_held()

    def _send_held(self) -> None:
        for batch in list(self._batches.values()):
            self._send(batch)

    def _send(self, batch: CachedBatch) -> None:
        held = batch.held
        if not batch.left:
            self._batches.pop(batch.batch.first_row, None)
        for output in batch.outputs(self.setup.writer, ordered=self._ordered):
            self.setup.emit(output)
        self._claim.add(-held)

    async def _until_free(self) -> None:
        """Wait until the client has read enough results."""
        while self.setup.room.full and not self._closed:
            self._send_held()
            freed = asyncio.Event()
            if not self.setup.room.when_free(functools.partial(self.setup.post, freed.set)):
                await freed.wait()

    def _read(self, entries: Sequence[bytes | None], keys: Sequence[bytes]) -> Found:
        damaged: list[int] = []
        found = self._entries.read(entries, keys, (self._ttl, self.options.cache_errors), damaged)
        if damaged:
            self._cache.count_errors("entry", len(damaged))
        return found

    def _keys(self, first_row: int) -> Sequence[bytes | None] | None:
        batch = self._batches.get(first_row)
        return None if batch is None else batch.keys


def _key(batch: CachedBatch, row: int) -> bytes:
    key = batch.keys[row]
    assert key is not None, "a row without a key neither waits nor is waited for"
    return key


def _failed(errors: Mapping[int, RowError], result: pa.DataType) -> tuple[Indexes, pa.Array]:
    return np.array(list(errors), np.int64), pa.nulls(len(errors), result)


def _call_heirs(heirs: Mapping[CachedBatch, Sequence[int]]) -> None:
    for batch, rows in heirs.items():
        batch.runner.inherit(batch, sorted(rows))
