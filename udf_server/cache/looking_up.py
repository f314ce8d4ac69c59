"""LookUps finds out for each row of one stream whether it has an entry, waits for an equal row, or is called."""

import asyncio
import collections
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from remote_udf.durations import format_seconds
from remote_udf.errors import ErrorCode
from remote_udf.options import CacheMode
from remote_udf.outcomes import RowError
from udf_server.base.key_value_store import BEGINNING_BYTES
from udf_server.base.threads import SMALL_BYTES, done_aside
from udf_server.cache.cached_batch import BatchAnswers, CachedBatch
from udf_server.cache.keying import Keying
from udf_server.cache.outcome_cache import CacheUnavailable, OutcomeCache
from udf_server.cache.sharing import SingleFlight
from udf_server.runners.runner import InputBatch, RunnerSetup
from udf_server.runners.selection import Indexes
from udf_server.stores.entries import EntryCodec, Found

__all__ = ["LookUps"]

LOOKED_UP_ROWS = 2_048
"""Maximum number of rows of one look-up, so that the event loop does other work in between."""
PAUSE_SECONDS = 0.001
"""The time between look-ups of rows that miss. Meanwhile calls end, which need the interpreter's lock too."""
COPIED_BYTES = 256 << 10
"""Values of at most this size together are copied from memory on the event loop."""
POLL_SECONDS = (0.02, 0.5)
"""How often the outcomes of other servers' calls are looked up: at first, and at the lowest rate."""


class LookUps:
    """The look-ups of one stream, one batch after the other. Use it on the server's event loop."""

    def __init__(
        self, setup: RunnerSetup, cache: OutcomeCache, keying: Keying, entries: EntryCodec, answers: BatchAnswers,
        shared: SingleFlight,
    ) -> None:  # fmt: skip
        self._setup, self._cache, self._keying, self._entries = setup, cache, keying, entries
        self._answers, self._shared = answers, shared
        self._function, options = setup.function.spec.key, setup.options
        self._ages = (options.cache_ttl or 0.0, options.cache_errors)
        self._timeout = options.cache_timeout
        self._refresh = options.cache_mode is CacheMode.REFRESH
        self._arrived: collections.deque[InputBatch] = collections.deque()
        self._looking = False

    def add(self, batch: InputBatch) -> None:
        """Look up the rows of a batch."""
        self._arrived.append(batch)
        if not self._looking:
            self._looking = True
            self._setup.spawn(self._look_up_all())

    def stop(self) -> None:
        """Begin no more look-ups."""
        self._arrived.clear()

    async def _look_up_all(self) -> None:
        while self._arrived:
            batch = self._arrived.popleft()
            columns, keys, skipped = await self._keying.read(batch)
            if self._answers.closed:
                return
            cached = CachedBatch(self._shared, batch, columns, keys)
            if self._setup.options.cache_required:
                cached.until = self._setup.clock() + self._setup.options.timeout - batch.waited
            self._answers.add(cached, skipped)
            await self._look_up(cached)
        self._looking = False

    async def _look_up(self, batch: CachedBatch) -> None:
        """Answer the rows that have an entry; wait for those in flight; call the others."""
        keyed, uncached = batch.split(np.flatnonzero(batch.open))
        self._setup.metrics.not_cached("uncached", len(uncached))
        missed = [keyed[:0]]
        for start in range(0, len(keyed), LOOKED_UP_ROWS):
            await self._answers.until_free()
            part = keyed[start : start + LOOKED_UP_ROWS]
            if not self._refresh:
                try:
                    part = await self._answer(batch, part)
                except CacheUnavailable:
                    self._answers.fail(batch, self._refused(part))
                    continue
            if self._answers.closed:
                return
            missed.append(self._shared.own(batch, part, batch.keys_of(part)))
            if len(part) and start + LOOKED_UP_ROWS < len(keyed):
                await asyncio.sleep(PAUSE_SECONDS)
        rows = np.concatenate(missed)
        if not self._cache.store.shared or self._refresh:
            self._shared.call(batch, rows if not len(uncached) else np.sort(np.concatenate([rows, uncached])))
            return
        self._shared.call(batch, uncached)
        batch.elsewhere = dict(zip(batch.keys_of(rows), rows.tolist(), strict=True))
        others = await self._claim_and_call(batch, rows)
        if len(others):
            self._setup.spawn(self._await_others(batch, others))

    async def _answer(self, batch: CachedBatch, rows: Indexes) -> Indexes:
        """Answer the rows that have an entry. Returns the others."""
        if self._cache.keeps_values:
            found = await self._recalled(batch.keys_of(rows))
        else:
            found = await self._found(batch, rows)
        if found is None:
            return rows
        errors = {int(rows[place]): error for place, error in found.errors.items()}
        hit = rows[found.rows]
        batch.count(hits=len(hit) + len(errors))
        self._answers.settle(batch, hit, found.values, {})
        self._answers.fail(batch, errors)
        return np.delete(rows, [*found.rows, *found.errors])

    async def _found(self, batch: CachedBatch, rows: Indexes) -> Found | None:
        """The outcomes that the store has for rows; None if there are none. Notes which entries are useless."""
        keys = batch.keys_of(rows)
        entries = await self._cache.get(self._function, keys, self._timeout, batch.until)
        beginnings = {place: entry[:BEGINNING_BYTES] for place, entry in enumerate(entries) if entry is not None}
        if self._answers.closed or not beginnings:
            return None
        damaged: list[int] = []
        large = sum(len(entry) for entry in entries if entry is not None) > SMALL_BYTES
        found = await done_aside(large, self._entries.read, entries, keys, self._ages, damaged)
        if len(found.rows) + len(found.errors) < len(beginnings):
            useless = sorted(beginnings.keys() - {*found.rows, *found.errors})
            # Rows that wait for another server are looked up again and again.
            new = [place for place in damaged if beginnings[place] != batch.useless.get(keys[place])]
            self._cache.count_errors("entry", len(new))
            batch.useless |= {keys[place]: beginnings[place] for place in useless}
            found = self._with_unwritten(found, useless, [keys[place] for place in useless])
        return None if self._answers.closed else found

    def _with_unwritten(self, found: Found, places: Sequence[int], keys: Sequence[bytes]) -> Found:
        """Add the outcomes that this process has for the keys at `places`, and has not written yet."""
        queued = self._cache.writes.unwritten(self._function)
        newer = self._entries.read([*map(queued.get, keys)], keys, self._ages, [])
        return Found(
            [*found.rows, *(places[row] for row in newer.rows)], pa.concat_arrays([found.values, newer.values]),
            found.errors | {places[row]: error for row, error in newer.errors.items()},
        )  # fmt: skip

    async def _recalled(self, keys: Sequence[bytes]) -> Found | None:
        """The outcomes that a store in memory has; None if there are none."""
        recalled = self._cache.recall(self._function, keys)
        if not recalled:
            return None
        damaged: list[int] = []
        large = sum(part.size for part in recalled) > COPIED_BYTES
        found = await done_aside(large, self._entries.of_recalled, recalled, keys, self._ages, damaged)
        self._cache.used(recalled)
        if damaged:
            self._cache.count_errors("entry", len(damaged))
        return None if self._answers.closed else found

    async def _await_others(self, batch: CachedBatch, rows: Indexes) -> None:
        """Wait for the outcomes of calls of other servers. Call the rows whose claim ends without an outcome."""
        limit = self._setup.options.timeout - batch.batch.waited
        pause, until = POLL_SECONDS[0], self._setup.clock() + limit
        while len(rows) and not self._answers.closed:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, POLL_SECONDS[1])
            rows, left = _waiting(batch, rows), [rows[:0]]
            try:
                for start in range(0, len(rows), LOOKED_UP_ROWS):
                    left.append(await self._look_again(batch, rows[start : start + LOOKED_UP_ROWS]))
                    if self._answers.closed:
                        return
                rows = np.concatenate(left)
            except CacheUnavailable:
                rows = _waiting(batch, rows)
            if self._setup.clock() >= until and batch.until is not None:
                self._shared.fail(batch, self._refused(_taken(batch, rows)))
                return
            if self._setup.clock() >= until:
                # The other server takes longer than these rows may take: they are called twice rather than too late.
                self._shared.call(batch, _taken(batch, rows))
                return
            rows = await self._claim_and_call(batch, rows)

    def _refused(self, rows: Indexes) -> dict[int, RowError]:
        """The errors of rows that must not be called without the cache."""
        message = (
            "timed out: the cache is unavailable, or another server calls an equal row, and option cache-required "
            f"forbids a call before; waited {format_seconds(self._setup.options.timeout)}"
        )
        self._setup.metrics.not_cached("late", len(rows))
        return dict.fromkeys(rows.tolist(), RowError(ErrorCode.CACHE_UNAVAILABLE, message, 0, True))

    async def _look_again(self, batch: CachedBatch, rows: Indexes) -> Indexes:
        """Answer the rows that another server has called. Returns the others."""
        found = await self._found(batch, rows)
        if found is not None:
            errors = {int(rows[place]): error for place, error in found.errors.items()}
            hit = rows[found.rows]
            batch.count(shared=int(batch.open[[*hit, *errors]].sum()))
            self._shared.finish(batch, hit, found.values, {})
            self._shared.fail(batch, errors)
        is_open = batch.open[rows]
        _taken(batch, rows[~is_open])
        return _waiting(batch, rows[is_open])

    async def _claim_and_call(self, batch: CachedBatch, rows: Indexes) -> Indexes:
        """Call the rows that this server may call. Returns the others."""
        others = [rows[:0]]
        for start in range(0, len(rows), LOOKED_UP_ROWS):
            if self._answers.closed:
                break
            others.append(await self._claim_part(batch, rows[start : start + LOOKED_UP_ROWS]))
        return np.concatenate(others)

    async def _claim_part(self, batch: CachedBatch, rows: Indexes) -> Indexes:
        keys = batch.keys_of(rows)
        try:
            claimed = await self._cache.claim(self._function, keys, batch.useless, self._timeout, batch.until)
        except CacheUnavailable:
            self._shared.fail(batch, self._refused(_taken(batch, rows)))
            return rows[:0]
        except asyncio.CancelledError:
            # The store may grant them all the same.
            self._shared.release(keys)
            raise
        if self._answers.closed:
            self._shared.release(keys)
        granted = np.array(claimed, np.bool_)
        self._shared.call(batch, _taken(batch, rows[granted]))
        return _waiting(batch, rows[~granted])


def _waiting(batch: CachedBatch, rows: Indexes) -> Indexes:
    """Those of the rows that still wait for another server: the others were called meanwhile."""
    return rows[np.fromiter((key in batch.elsewhere for key in batch.keys_of(rows)), np.bool_, len(rows))]


def _taken(batch: CachedBatch, rows: Indexes) -> Indexes:
    """Do the same for rows that wait no more."""
    waiting = _waiting(batch, rows)
    for key in batch.keys_of(waiting):
        del batch.elsewhere[key]
    return waiting
