"""Sender encodes and sends the outcomes of a pool's batches, and makes the pool wait while the client does not read."""

import asyncio
import functools
from collections.abc import Callable

from udf_server.hosting.turns import Turns
from udf_server.runners.batches import RowBatch
from udf_server.runners.outputs import Output
from udf_server.runners.runner import RunnerSetup

__all__ = ["Sender"]


class Sender:
    """Use it on the event loop of its pool, where encoding takes turns with the work of other streams."""

    def __init__(
        self,
        setup: RunnerSetup,
        deliver: Callable[["Sender", list[Output]], None],
        turns: Turns,
        post: Callable[..., object],
    ) -> None:
        """`deliver` takes outputs on the server's loop; `post` calls a function on the pool's loop from any thread."""
        self.unfinished: dict[RowBatch, None] = {}
        """Batches with rows that have no outcome yet, oldest first."""
        self._setup, self._deliver = setup, deliver
        self._turns, self._post = turns, post
        self._flush: asyncio.TimerHandle | None = None
        self.flushes = False
        """Whether sending of all completed rows is scheduled."""
        self._held_up = False
        self._closed = False

    def close(self) -> None:
        """Write nothing more. Safe to call from any thread."""
        self._closed = True

    def cancel(self) -> None:
        """Write nothing more and discard the unfinished batches."""
        self._closed = True
        self.unfinished.clear()
        if self._flush is not None:
            self._flush.cancel()

    def holds_up(self, wake: Callable[[], object]) -> bool:
        """Whether no row may begin because the client does not read. `wake` is called once it has read enough."""
        for batch in list(self.unfinished):
            self.send_soon(batch)
        if not self._held_up:
            self._held_up = not self._setup.room.when_free(functools.partial(self._post, self._go_on, wake))
        return self._held_up

    def send_soon(self, batch: RowBatch) -> None:
        """Schedule sending of the outcomes of an unfinished batch that are ready."""
        if not batch.sending:
            batch.sending = True
            self._turns.do(self._setup.party, functools.partial(self._send_now, batch))

    def flush_soon(self) -> None:
        """Schedule sending of all completed rows after `flush_seconds`. Has an effect with unordered output only."""
        if self._flush is None and not self._setup.writer.ordered:
            self.flushes = True
            self._flush = asyncio.get_running_loop().call_later(
                self._setup.flush_seconds(), self._turns.do, self._setup.party, self._flush_now
            )

    def finish(self, batch: RowBatch) -> None:
        """Schedule sending of the rest of a batch of which every row has an outcome."""
        self._turns.do(self._setup.party, functools.partial(self._finish_now, batch))

    def _go_on(self, wake: Callable[[], object]) -> None:
        self._held_up = False
        if not self._closed:
            wake()

    def _send_now(self, batch: RowBatch) -> None:
        batch.sending = False
        if batch in self.unfinished:
            self._write(batch, ended=False)

    def _flush_now(self) -> None:
        self._flush, self.flushes = None, False
        for batch in list(self.unfinished):
            self._write(batch, ended=False)

    def _finish_now(self, batch: RowBatch) -> None:
        if not self._closed:
            self.unfinished.pop(batch, None)
            self._write(batch, ended=True)

    def _write(self, batch: RowBatch, *, ended: bool) -> None:
        if self._closed:
            return
        try:
            outputs = batch.outputs(self._setup.writer, ended=ended)
        except Exception as error:
            self._setup.post(self._setup.fail, error)
            return
        if outputs:
            self._setup.post(self._deliver, self, outputs)
