"""DynamicBatcher decides when rows of several streams are called together, and makes the calls.

A call starts when an instance is idle and one of these holds: there are enough rows or bytes, the oldest row has waited
for `max-queue-delay`, or no stream is expected to send more rows soon. A stream is expected to, if it has no rows here
and it began, or got its last outcomes, less than that delay ago.
"""

import asyncio
import collections
import functools
from collections.abc import Awaitable, Callable, Coroutine, Hashable

from remote_udf.effective_options import HostedOptions
from remote_udf.threads import Threads
from udf_server.base.fairness import Party
from udf_server.base.threads import poster
from udf_server.batching.attempt import Attempt, InstanceGate
from udf_server.batching.merged_call import MergedCall
from udf_server.batching.row_queue import MergedStream, Part, RowQueue
from udf_server.hosting.executors import Timer
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.runners.calling import Calling, Returned
from udf_server.runners.retries import RetryPolicy
from udf_server.runners.runner import RunnerSetup, timeout_error

__all__ = ["Batchers", "DynamicBatcher", "batcher_of"]


class Batchers:
    """The batchers of one hosted function, and its instances. Streams share calls if their options are the same."""

    def __init__(self, instances: int, threads: Threads) -> None:
        self.idle = self._instances = instances
        """Number of instances without a call; -1 while one more call is ready for the first of them."""
        self.gate = InstanceGate(instances, threads)
        self._batchers: dict[Hashable, DynamicBatcher] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._going = self._wanted = False

    def of(self, key: Hashable, make: "Callable[[], DynamicBatcher]") -> "DynamicBatcher":
        if key not in self._batchers:
            self._batchers[key] = make()
        return self._batchers[key]

    def remove(self, batcher: "DynamicBatcher") -> None:
        """Remove a batcher without streams."""
        for key in [key for key, each in self._batchers.items() if each is batcher]:
            del self._batchers[key]

    def freed(self) -> None:
        """Return an instance. The batchers take turns."""
        self.idle += 1
        self.go_on()

    def go_on(self) -> None:
        """Start the calls that can start. A batcher that has started one comes last from then on."""
        self._wanted = True
        if self._going:
            return
        self._going = True
        try:
            while self._wanted:
                self._wanted = False
                for key, batcher in list(self._batchers.items()):
                    if batcher.dispatch() and key in self._batchers:
                        self._batchers[key] = self._batchers.pop(key)
        finally:
            self._going = False

    @property
    def crowded(self) -> bool:
        """Whether rows or calls wait although no instance is idle."""
        return self.idle < 0 or (self.idle == 0 and any(each.waits for each in self._batchers.values()))

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def kept(self) -> str:
        """What is kept although no stream needs it; empty if nothing is. For tests."""
        busy = self._instances - self.idle
        return f"{len(self._batchers)} batchers, {busy} instances" if self._batchers or busy else ""

    def close(self) -> None:
        """Cancel what runs. Call when the server stops."""
        for task in self._tasks:
            task.cancel()
        for batcher in list(self._batchers.values()):
            batcher.close()


class DynamicBatcher:
    """The common calls of streams with the same options. Use it on the server's event loop."""

    def __init__(self, setup: RunnerSetup, options: HostedOptions, batch_rows: int, batchers: Batchers) -> None:
        assert options.max_queue_delay is not None
        self.clock = setup.clock
        self._hosted: HostedFunction = setup.hosted
        self._function = setup.function
        self._metrics = setup.metrics
        self._delay = options.max_queue_delay
        self._most_rows, self._most_bytes = batch_rows, options.batch_bytes
        self._mix_callers = options.mix_callers
        self._batchers = batchers
        self._calling = Calling(setup.function, setup.arguments.targets)
        self._retry = RetryPolicy(setup.options, setup.random)
        self._timed_out = functools.partial(timeout_error, setup.options.timeout)
        self._post = poster(asyncio.get_running_loop())
        self.later = setup.hosted.executors.later
        self._queue = RowQueue()
        self._streams: dict[MergedStream, None] = {}
        self._quiet: dict[MergedStream, float] = {}
        """The streams without rows here, since when; the latest is the last."""
        self._held_up: dict[MergedStream, None] = {}
        """The streams whose clients do not read results."""
        self._calls: dict[MergedCall, None] = {}
        self._again: collections.deque[MergedCall] = collections.deque()
        """Calls that wait for an instance for their next attempt."""
        self._timer: Timer | None = None
        self._timed = 0.0

    def join(self, stream: MergedStream) -> None:
        """Add a stream, which may push rows from now on."""
        self._streams[stream] = None
        self._quiet[stream] = self.clock()

    def leave(self, stream: MergedStream) -> None:
        """Remove a stream that has ended, with its rows. Results of calls that are running are dropped."""
        self._streams.pop(stream, None)
        self._quiet.pop(stream, None)
        self._held_up.pop(stream, None)
        self._queue.drop(stream.setup.party, stream)
        for call in list(self._calls):
            call.left()
        if not self._streams:
            self._stop_timer()
            self._batchers.remove(self)
        self._batchers.go_on()

    def drop(self, stream: MergedStream) -> None:
        """Remove the rows of a stream that are in no call."""
        self._queue.drop(stream.setup.party, stream)
        self._batchers.go_on()

    def push(self, stream: MergedStream, part: Part) -> None:
        """Add rows of a stream."""
        self._quiet.pop(stream, None)
        self._queue.push(stream.setup.party, part)
        self._batchers.go_on()

    def holds_up(self, stream: MergedStream) -> bool:
        """Whether no rows of the stream are taken."""
        return stream in self._held_up

    def hold_up(self, stream: MergedStream) -> None:
        """Take no rows of the stream until `go_on`."""
        self._held_up[stream] = None

    def go_on(self, stream: MergedStream) -> None:
        """Start calls, because the stream is not held up any more."""
        self._held_up.pop(stream, None)
        self._batchers.go_on()

    @property
    def _rows(self) -> int:
        """Number of waiting rows that may be called."""
        held = sum(self._queue.waiting(stream.setup.party, stream) for stream in self._held_up)
        return self._queue.rows - held

    @property
    def waits(self) -> bool:
        """Whether rows that may be called, or calls, wait."""
        return self._rows > 0 or len(self._again) > 0

    def check(self, now: float) -> None:
        """Check the deadlines of the calls."""
        for call in list(self._calls):
            call.check(now)

    def dispatch(self) -> bool:
        """Start calls while instances are idle. Returns whether one was started."""
        started = False
        while self._batchers.idle > 0 or self._prepares():
            if self._again:
                started |= self._attempt(self._again.popleft())
                continue
            wait = self._wait()
            if wait is None:
                break
            if wait > 0:
                self._set_timer(wait)
                break
            self._begin()
            started = True
        return started

    def _prepares(self) -> bool:
        """Whether a call is made ready while all instances are busy: if waiting longer would not add rows to it.

        The thread with that call begins as soon as another thread has left the function.
        """
        ready = bool(self._again) or self._rows >= self._most_rows
        return ready and self._batchers.idle == 0 and not self._function.is_async

    def _wait(self) -> float | None:
        """Seconds to wait for more rows: 0.0 if a call starts now, None if there are no rows that may be called."""
        oldest = self._queue.oldest(self._held_up) if self._queue.rows else None
        if oldest is None:
            return None
        if self._rows >= self._most_rows or (self._queue.bytes >= self._most_bytes and not self._held_up):
            return 0.0
        if not self._quiet:
            return 0.0
        latest = self._quiet[next(reversed(self._quiet))]
        return max(min(oldest, latest) + self._delay - self.clock(), 0.0)

    def _begin(self) -> None:
        slices = self._queue.take(
            self._most_rows, self._most_bytes, mix_callers=self._mix_callers, held_up=self._held_up
        )
        now = self.clock()
        for piece in slices:
            piece.part.stream.calling += len(piece)
        self._metrics.merged([now - piece.part.arrived for piece in slices], list(map(len, slices)))
        call = MergedCall(self, self._function, self._calling, self._retry, slices, self._timed_out)
        self._calls[call] = None
        call.advance()

    def want_instance(self, call: MergedCall) -> None:
        self._again.append(call)
        self._batchers.go_on()

    def _attempt(self, call: MergedCall) -> bool:
        self._batchers.idle -= 1
        if not call.run():
            self._batchers.idle += 1
            return False
        return True

    def start(self, call: MergedCall, evaluate: Callable[[], "Returned | Awaitable[Returned]"]) -> Attempt:
        owner = call.slices[0].part.stream.setup.party
        party = Party(owner.caller, owner.job, share=owner.share, priority=owner.priority)

        def done(attempt: Attempt, returned: Returned | None, error: BaseException | None) -> None:
            # The next call starts before the results of this one are passed on: so the instance is idle for less time.
            self._batchers.freed()
            call.answered(attempt, returned, error)

        attempt = Attempt(
            self._hosted, evaluate, done, party, self._post, self._batchers.spawn, self.clock, self._batchers.freed,
            self._batchers.gate,
        )  # fmt: skip
        attempt.start()
        return attempt

    def fail(self, error: BaseException, call: MergedCall) -> None:
        for stream in dict.fromkeys(piece.part.stream for piece in call.slices):
            if not stream.closed:
                stream.setup.fail(error)

    def ended(self, call: MergedCall) -> None:
        self._calls.pop(call, None)
        if call.began:
            self._metrics.observe_rows([self.clock() - call.began], [call.rows])
        now = self.clock()
        for stream in dict.fromkeys(piece.part.stream for piece in call.slices):
            if not stream.closed and not stream.calling and not self._queue.waiting(stream.setup.party, stream):
                self._quiet.pop(stream, None)
                self._quiet[stream] = now
        self._batchers.go_on()

    def close(self) -> None:
        """Stop timers and cancel what can be cancelled."""
        self._stop_timer()
        for call in list(self._calls):
            if call.attempt is not None:
                call.attempt.cancel()

    def _set_timer(self, seconds: float) -> None:
        due = self.clock() + seconds
        if self._timer is not None and self._timed <= due:
            return
        self._stop_timer()
        self._timed, self._timer = due, self.later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._batchers.go_on()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def batcher_of(setup: RunnerSetup) -> DynamicBatcher:
    """The batcher of a stream's function and options."""
    hosted, options = setup.hosted, setup.options
    merging = hosted.options.merging
    assert merging is not None
    if hosted.batching is None:
        hosted.batching = Batchers(merging.instances, hosted.executors.threads)
    batchers = hosted.batching
    assert isinstance(batchers, Batchers)
    key = (
        tuple(setup.arguments.targets), options.timeout, options.attempt_timeout, options.retry_strategy,
        options.fixed_delay, options.initial_delay, options.max_delay, options.max_attempts, options.retry_on,
    )  # fmt: skip
    return batchers.of(key, lambda: DynamicBatcher(setup, merging, hosted.options.scalar({}).batch_rows, batchers))
