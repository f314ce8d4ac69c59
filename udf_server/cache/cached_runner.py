"""CachedRunner answers rows from the cache and has another runner call the function for the others.

It runs on the server's event loop, between the stream and the runner of the function's execution. A row whose key has
an entry gets its outcome at once. A row that is equal to one in flight waits for its outcome. All others are called.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from remote_udf.errors import ErrorCode
from remote_udf.options import CacheScope, OutputMode
from remote_udf.outcomes import RowError
from udf_server.cache.cached_batch import BatchAnswers, CachedBatch
from udf_server.cache.keying import Keying
from udf_server.cache.keys import RowKeys
from udf_server.cache.looking_up import LookUps
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.cache.sharing import SingleFlight
from udf_server.runners.outputs import Output, OutputWriter, Taken
from udf_server.runners.room import Room
from udf_server.runners.runner import FLUSH_SECONDS, TICKS_PER_TIMEOUT, InputBatch, Runner, RunnerSetup
from udf_server.runners.selection import Indexes
from udf_server.stores.entries import EntryCodec

__all__ = ["CachedRunner"]

COLLECT_SECONDS = 0.1
"""Outcomes that nobody waits for are collected this long, unless another process could use them."""
_KEPT_ERRORS = (ErrorCode.FUNCTION_ERROR, ErrorCode.RESULT_TYPE)
_Keys = NDArray[np.object_]
_Kept = tuple[Sequence[bytes], pa.Array, Sequence[bytes]]
"""The outcomes that are to be kept: keys, values, and their entries if the store has entries."""


@dataclass(frozen=True, slots=True)
class Collected(Output):
    """Outcomes of rows that were called: `taken` by position, `indexes` of the rows in their batch."""

    taken: Taken = field(kw_only=True)
    indexes: Indexes = field(kw_only=True)
    kept: _Kept = field(kw_only=True)


class CollectingWriter(OutputWriter):
    """Passes outcomes of calls to the cache, not to the client, from any thread. Entries are made on that thread."""

    def __init__(
        self, result: pa.DataType, *, max_message_bytes: int, room: Room, entries: EntryCodec | None,
        keys: Callable[[int], _Keys | None],
    ) -> None:  # fmt: skip
        """`keys` returns the keys of the batch that starts at a row; None if its outcomes are not kept.

        Without `entries`, values are kept as they are.
        """
        super().__init__(result, ordered=False, max_message_bytes=max_message_bytes, room=room)
        self._entries = entries
        self._keys = keys

    def write(self, batch: int, taken: Taken, rows: Sequence[int] | None = None) -> list[Output]:
        assert rows is not None, "rows are collected as they complete"
        indexes = np.array(rows, np.int64) - batch
        # They outlive the call, whose function may reuse the memory of its array, or return a part of a large one.
        taken = taken._replace(values=pa.concat_arrays([taken.values]))
        collected = Collected(
            b"", batch, len(indexes), 0, {}, taken.values.nbytes, taken.calls, taken.retries, taken=taken,
            indexes=indexes, kept=self._kept(batch, taken, indexes),
        )  # fmt: skip
        return [self._counted(collected)]

    def _kept(self, batch: int, taken: Taken, indexes: Indexes) -> _Kept:
        keys = self._keys(batch)
        if keys is None:
            return (), taken.values, ()
        values, mine = taken.values, keys[indexes].tolist()
        if taken.errors or None in mine:
            chosen = [place for place, key in enumerate(mine) if key is not None and place not in taken.errors]
            values, mine = values.take(pa.array(chosen, pa.int64())), [mine[place] for place in chosen]
        return mine, values, () if self._entries is None else self._entries.of_values(values, mine)


class CachedRunner(Runner):
    """Calls the function for the rows of one stream, unless their outcomes are in the cache.

    If the stream is lost, the calls that run may end by themselves, so that their outcomes are kept: see `let_go`.
    """

    def __init__(
        self, setup: RunnerSetup, make: Callable[[RunnerSetup], Runner], cache: OutcomeCache, caller: str,
        budgets: Sequence[object],
    ) -> None:  # fmt: skip
        """`make` creates the runner that calls the function. `caller` is the identity of the stream's caller, and
        `budgets` bound its calls.
        """
        super().__init__(setup)
        options, spec = setup.options, setup.function.spec
        self._cache, self._function = cache, spec.key
        self._ttl = options.cache_ttl or 0.0
        scope = options.cache_scope or (CacheScope.CALLER if cache.callers_differ else CacheScope.ALL)
        private = caller if scope is CacheScope.CALLER else ""
        keying = Keying(setup, RowKeys(setup.function, setup.arguments.targets, options.cache_key, private, cache.code))
        self._entries = EntryCodec(spec.result, cache.wall, cache.sealing)
        self._answers = BatchAnswers(setup)
        self._shared = SingleFlight(setup, cache, self._answers, budgets)
        self._look_ups = LookUps(setup, cache, keying, self._entries, self._answers, self._shared)
        self._running: dict[int, tuple[CachedBatch, set[int]]] = {}
        """After `let_go`: the rows whose call runs, by the first row of their batch."""
        self._ended = asyncio.Event()
        writer = CollectingWriter(
            spec.result, max_message_bytes=setup.writer.limit, room=setup.room, keys=self._keys,
            entries=None if cache.keeps_values else self._entries,
        )  # fmt: skip
        inner = dataclasses.replace(
            setup, options=dataclasses.replace(options, output_mode=OutputMode.UNORDERED), writer=writer,
            emit=self._collected, flush_seconds=self._collect_seconds,
        )  # fmt: skip
        runner = self._shared.runner = make(inner)
        self.tick_seconds = runner.tick_seconds

    def feed(self, batch: InputBatch) -> None:
        self._look_ups.add(batch)

    def tick(self) -> None:
        if self._shared.runner is None:
            return
        self._shared.runner.tick()
        for batch in list(self._answers.batches.values()):
            if batch.waits:
                self._shared.check_waits(batch)
        if self.setup.room.full:
            self._answers.send_held()

    def cancel(self) -> None:
        # The inner runner and this one refer to each other. This breaks the cycle, so that the collector is not needed.
        runner, self._shared.runner = self._shared.runner, None
        if runner is None:
            return
        runner.cancel()
        self._look_ups.stop()
        running, self._running = self._running, {}
        self._shared.abandon([*self._answers.close(), *(batch for batch, _ in running.values())])
        self._ended.set()

    def let_go(self) -> None:
        """Call no more rows and send nothing more, because the stream was lost. Calls that run continue.

        `running` has them until they end. Call `tick` meanwhile, and `cancel` in the end.
        """
        if self._shared.runner is None:
            return
        self._look_ups.stop()
        for batch in self._answers.batches.values():
            for selection in batch.selections:
                selection.drop()
        self._shared.runner.drop_waiting()
        for batch in self._answers.batches.values():
            rows, _ = batch.split(batch.running)
            if len(rows):
                self._running[batch.batch.first_row] = batch, {*rows.tolist()}
        kept = {key for batch, rows in self._running.values() for key in batch.keys_of([*rows])}
        self._shared.abandon(self._answers.close(), kept)
        # Nobody reads results, so they must not wait for room.
        self.setup.room.close()

    @property
    def running(self) -> Mapping[int, int]:
        """After `let_go`: the number of rows whose call runs, by the first row of their batch."""
        return {first: len(rows) for first, (_, rows) in self._running.items()}

    async def ended(self, seconds: float) -> bool:
        """Wait until no row is running any more, at most this time. Returns whether that is so."""
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def _collect_seconds(self) -> float:
        """How long outcomes are collected. Each time, calls that run wait for the interpreter's lock several times."""
        options, cache = self.options, self._cache
        if not cache.keeps_values or options.output_mode is OutputMode.UNORDERED or cache.flights.waited_for:
            return FLUSH_SECONDS
        return min(COLLECT_SECONDS, options.timeout / TICKS_PER_TIMEOUT)

    def _collected(self, output: Output) -> None:
        """Take outcomes of rows that were called."""
        assert isinstance(output, Collected)
        self.setup.room.give_back(output.size)
        keys, values, entries = output.kept
        if keys and self._cache.keeps_values:
            self._cache.keep_values(self._function, keys, values, self._ttl)
        elif keys:
            self._cache.keep(self._function, list(zip(keys, entries, strict=True)), self._ttl)
        let_go = self._running.get(output.batch)
        batch = let_go[0] if let_go else self._answers.batches.get(output.batch)
        if batch is None:
            return
        rows = output.indexes
        errors = {int(rows[place]): error for place, error in output.taken.errors.items()}
        self._keep_errors(batch, errors)
        batch.count(calls=output.calls, retries=output.retries)
        self._shared.finish(batch, rows, output.taken.values, errors)
        if let_go:
            self.setup.metrics.called(output.calls, output.retries)
            self._end_of(output.batch, let_go[1], rows)

    def _end_of(self, first_row: int, running: set[int], rows: Indexes) -> None:
        running.difference_update(rows.tolist())
        if not running:
            del self._running[first_row]
        if not self._running:
            self._ended.set()

    def _keep_errors(self, batch: CachedBatch, errors: Mapping[int, RowError]) -> None:
        if not self.options.cache_errors:
            return
        kept = [
            (key, self._entries.of_error(error, key))
            for row, error in errors.items()
            if (key := batch.keys[row]) is not None
            and error.code in _KEPT_ERRORS and not error.retryable and error.attempts
        ]  # fmt: skip
        if kept:
            self._cache.keep(self._function, kept, self.options.cache_errors)

    def _keys(self, first_row: int) -> _Keys | None:
        """The keys of a batch, on any thread; None if no row of it needs an outcome any more."""
        let_go = self._running.get(first_row)
        batch = let_go[0] if let_go else self._answers.batches.get(first_row)
        return None if batch is None else batch.keys
