"""ServedCall is what a stream has once its function is open: the runner of its calls, and the accounts of its rows."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

from remote_udf.functions import Execution
from remote_udf.options import OutputMode
from remote_udf.shared_memory import SharedMemory, SharedMemoryRefused, attach
from remote_udf.spans import Span
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.threads import poster
from udf_server.batching.merged_rows import MergedRows
from udf_server.cache.cached_runner import CachedRunner
from udf_server.runners.async_rows import AsyncRows
from udf_server.runners.outputs import OutputWriter
from udf_server.runners.room import Room
from udf_server.runners.runner import Runner, RunnerSetup
from udf_server.runners.threaded_rows import ThreadedRows
from udf_server.runners.vectorized import Vectorized
from udf_server.security.access import Caller
from udf_server.streams.accounting import RowAccounts
from udf_server.streams.background import Outbox
from udf_server.streams.opening import Opening
from udf_server.streams.services import StreamServices
from udf_server.streams.stream_reports import StreamProgress, stream_ended

__all__ = ["ServedCall"]

log = logging.getLogger(__name__)
_RUNNERS: dict[Execution, type[Runner]] = {
    Execution.ASYNC_ROWS: AsyncRows,
    Execution.THREADED_ROWS: ThreadedRows,
    Execution.VECTORIZED: Vectorized,
    Execution.BATCHED: Vectorized,
}


class ServedCall:
    """The call of a function that a stream carries. Call `start` once, then feed `runner`.

    What it acquires is released by the exit stack of the stream.
    """

    def __init__(
        self, services: StreamServices, opening: Opening, request: pb.Open, held: contextlib.ExitStack, *,
        caller: Caller, span: Span,
    ) -> None:  # fmt: skip
        self._services, self._opening, self._request, self._held = services, opening, request, held
        self._caller, self._limits, self._span, self._clock = caller, services.limits, span, services.clock
        self.hosted = opening.hosted
        spec = opening.hosted.spec
        self.metrics = services.metrics.function(spec.name, spec.version, estimates=request.estimate)
        self.metrics.streams.inc()
        count = services.metrics.caller_answered("" if request.estimate else caller.name)
        self.accounts = RowAccounts(
            self._limits, self.metrics, self._clock, admission=services.admission, function=spec.key, span=span,
            caller=caller, count=count, budgets=opening.budgets,
        )  # fmt: skip
        held.callback(self.accounts.drop)
        self.room: Room | None = None
        self.shared: SharedMemory | None = None
        """The memory that the caller shares; None if it shares none."""
        self.runner: Runner | None = None
        """None before `start` and after `leave`."""

    def start(
        self, outbox: Outbox, *, fail: Callable[[BaseException], None],
        spawn: Callable[[Coroutine[None, None, None]], object],
    ) -> Runner:  # fmt: skip
        """Create the runner, whose outcomes go to the outbox. `fail` and `spawn` are those of a RunnerSetup."""
        opening, bound, held = self._opening, self._opening.bound, self._held
        self._span.event("opened")
        party = self._caller.party(self._request.context.job[:200])
        held.callback(party.close)
        self.shared = self._attached()
        self.room = room = Room(
            self._limits.result_bytes,
            self._services.admission.rooms,
            self.metrics.results_waited,
            self.hosted.executors.threads,
            owner=self._caller.identity,
        )
        held.callback(room.close)
        outbox.results(self.accounts, room)
        setup = RunnerSetup(
            hosted=opening.hosted,
            function=bound.function,
            context=opening.context,
            options=bound.options,
            arguments=bound.arguments,
            writer=self._writer(room),
            emit=outbox.emit,
            began=self.accounts.began,
            retried=self.accounts.retried,
            fail=fail,
            post=poster(asyncio.get_running_loop()),
            room=room,
            takes_parts=bound.function.emits and self._request.takes_parts,
            spawn=spawn,
            metrics=self.metrics,
            party=party,
            clock=self._clock,
            random=self._services.new_random(),
        )
        self.runner = self._made_runner(setup)
        return self.runner

    def _writer(self, room: Room) -> OutputWriter:
        bound = self._opening.bound
        return OutputWriter(
            bound.function.spec.result,
            ordered=bound.options.output_mode is OutputMode.ORDERED,
            max_message_bytes=self._limits.message_bytes,
            room=room,
            shared=self.shared,
            what=("state and timers of this segment take" if bound.function.emits else "the value of this row takes"),
            spending=self._opening.context.spending,
        )

    def _made_runner(self, setup: RunnerSetup) -> Runner:
        """The runner of the stream's calls, behind the cache if the call has one.

        With budgets its rows do not join calls of other streams: of those no single job could be refused its part. Nor
        do estimates, which are no calls.
        """
        alone = bool(self._opening.budgets) or self._request.estimate
        merges = setup.hosted.options.merging is not None and not alone
        make = MergedRows if merges else _RUNNERS[setup.function.spec.execution]
        cache = self._services.cache
        if cache is None or not setup.options.cache_ttl:
            return make(setup)
        budgets = [budget.now()[0] for budget in self._opening.budgets]
        return CachedRunner(setup, make, cache, self._caller.identity, budgets)

    def _attached(self) -> SharedMemory | None:
        """The memory that a caller on this host offers; None if it offers none, or if it cannot be opened from here."""
        request = self._request
        if not request.HasField("shared_memory") or not self._limits.shared_memory or not self._caller.same_host:
            return None
        try:
            shared = attach(request.shared_memory, self._limits.message_bytes)
        except SharedMemoryRefused as refused:
            # The caller may run in another container or as another user. Shared memory is optional.
            log.debug("no shared memory", extra={"function": request.function[:200], "why": str(refused)})
            return None
        self._held.callback(shared.close)
        self.metrics.shared_memory.inc()
        return shared

    @property
    def progress(self) -> StreamProgress:
        """What the stream has answered, for the session of its caller; estimates are of no session."""
        session = "" if self._request.estimate else self._request.context.session
        return StreamProgress(session, self.accounts.counts, self.accounts.unanswered_rows)

    @property
    def waiting_seconds(self) -> float | None:
        """How long its oldest message has waited for a first call of the function; None without unanswered rows."""
        if not self.accounts.unanswered_rows:
            return None
        since = self.accounts.waits_since()
        return 0.0 if since is None else self._clock() - since

    def cancel(self) -> None:
        """Cancel the calls that run."""
        if self.runner is not None:
            self.runner.cancel()

    def leave(self) -> None:
        """Cancel the runner and drop the reference to it, because it refers to the stream: that would be a cycle."""
        self.cancel()
        self.runner = None

    def report(self, end: str, seconds: float) -> None:
        """Count the stream, which has ended after this time."""
        counts = self.accounts.counts
        self._span.set(
            end=end,
            rows=counts.rows_in,
            ok=counts.rows_ok,
            failed=counts.rows_failed,
            calls=counts.calls,
            retries=counts.retries,
        )
        self.metrics.rows_in_flight.dec(self.accounts.unanswered_rows)
        self.metrics.stream_ended(end)
        stream_ended(self._caller, self.hosted.spec.key, end, counts, seconds, estimate=self._request.estimate)
