"""Simulated server processes: the real service, admission, runners, executors. They crash, freeze, drain, restart."""

import asyncio
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn

import grpc

from remote_udf.messages import read_response
from tests.simulation.bounds import Bounds
from tests.simulation.guarded import Guarded
from tests.simulation.hedged import Hedged
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import UPDATE, WINDOW, ClientStream, Network, RpcLost
from tests.simulation.scenario import HedgePlan
from tests.simulation.scheduler import Process
from tests.simulation.shares import Shares
from tests.simulation.sharing import SharedGuarded, SimulatedRedis
from tests.simulation.threads import SimulatedThreads
from udf_server.base.call_scope import current_scope
from udf_server.base.extra_metrics import GuardMetrics
from udf_server.base.metrics import ServerMetrics
from udf_server.declaring.functions import Function
from udf_server.hosting.executors import Executors, HostLimits
from udf_server.hosting.load import ReportedLoad
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.hosting.turns import Turns
from udf_server.limits.budget_costs import GRACE_SECONDS
from udf_server.limits.budgets import Budgets
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import GuardSettings, WithoutCoordination
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledgers import SHARED
from udf_server.streams.service import UdfService
from udf_server.streams.services import Admission, AdmissionLimits, StreamLimits, StreamServices

__all__ = ["METRICS", "ServerStream", "SimulatedServer"]

GUARDED = "slow@1"
METRICS = ServerMetrics()
"""Of all servers of all worlds: they are expensive to make, and nothing depends on them."""
ENDS = {"finished", "cancelled", "error", "elsewhere"}
"""The last messages of streams."""
RESTART_SECONDS = 0.5
"""How long a server that has run out of memory is away."""
BEAT_SECONDS = 10.0
"""Interval at which idle streams are looked for. A real server does so every second, which finds nothing else."""
LAG_SECONDS = 0.025
"""Interval at which the lag of a loop is measured. A real server does so every 5 ms."""


class SimulatedServer:
    """One server at an address. `start` makes a new process of it."""

    cores = 1.0
    beat_seconds = BEAT_SECONDS

    def __init__(
        self, network: Network, address: str, functions: Sequence[Function], *,
        limits: StreamLimits | None = None, admission: AdmissionLimits | None = None, host: HostLimits | None = None,
        bounds: Bounds | None = None, guard: GuardSettings | None = None, hedge: HedgePlan | None = None,
        redis: SimulatedRedis | None = None, spends: Callable[["SimulatedServer"], Any] | None = None,
    ) -> None:  # fmt: skip
        """`bounds` look at what it holds. `guard` and `hedge` are those of `slow`; `redis` shares the guard.

        `spends` returns what looks at the tokens of calls in the process that starts.
        """
        self._spends = spends
        self.network, self.address, self.functions = network, address, functions
        self.offered = functions
        """The functions of the process that starts next."""
        self.memory: int | None = None
        """The bytes of a message that end the process, if it is out of memory."""
        self._limits, self._admission, self._host = limits or StreamLimits(), admission, host
        self.bounds, self._guard, self._hedge, self._redis = bounds, guard, hedge, redis
        self.starts = 0
        self.longest_end = 0.0
        """The longest time from the last message of a stream to when its client, which reads, gave it up."""
        self.ended: list[Any] = []
        """What belonged to processes that have ended. It is kept, so that no collector ends it during the run."""

    def start(self) -> None:
        self.starts += 1
        self.ending = False
        """Whether its process was asked to end. While it is frozen, it does not know."""
        scheduler = self.network.scheduler
        self.process = process = Process(scheduler, f"{self.address}#{self.starts}")
        self.threads = threads = SimulatedThreads(process)
        self.loop = SimulatedLoop(process, threads, running=True)
        self.loops = [self.loop]
        random = scheduler.random(f"server {process.name}")

        def new_loop() -> SimulatedLoop:
            self.loops.append(SimulatedLoop(process, threads))
            if self.bounds is not None or self._guard is not None:
                self.loops[-1].watch = self._look
            return self.loops[-1]

        def new_turns(calls: int) -> Turns:
            return Turns(calls, scheduler.clock, scheduler.clock, LAG_SECONDS)

        executors = Executors(threads, scheduler.clock, new_loop, new_turns)
        self.host = FunctionHost(
            Registry([("simulated", function) for function in self.offered]), limits=self._host, executors=executors,
            defaults={"slow": hedge.options} if (hedge := self._hedge) else None,
        )  # fmt: skip
        self.guarded: Guarded | SharedGuarded | None = None
        """What looks at the guard of `slow`, if it has one."""
        self.coordinator: Coordinator | None = None
        self.budgets: Budgets | None = None
        if self._redis is not None:
            self._share(self._redis)
        elif self._guard is not None:
            guard = Limiter(GUARDED, self._guard, GuardMetrics(METRICS, "slow", "1"), scheduler.clock)
            self.guarded = Guarded(self._guard, guard, f"{process.name}, {GUARDED}", process)
            process.observers.append(self.guarded)
        if self._spends is not None:
            process.observers.append(self._spends(self))
        self.shares = Shares()
        self.admission = Admission(self._admission)
        services = StreamServices(
            self.host, METRICS, self._limits, self.admission, budgets=self.budgets, clock=scheduler.clock,
            guards={} if self.guarded is None else {GUARDED: self.guarded.guard},
            new_random=lambda: scheduler.random(f"jitter {process.name} {random.random()}"),
        )  # fmt: skip
        load = ReportedLoad(scheduler.clock, self.cpu_seconds, self.cores)
        self.service = UdfService(self.serving(services), load=load)
        if self.bounds is not None:
            self.loop.watch = functools.partial(self.bounds.look, self)
            process.observers.append(self.shares)
        if self._hedge is not None:
            process.observers.append(Hedged(self._hedge.share, process.name))
        self.streams: dict[ServerStream, None] = {}
        self.network.listening[self.address] = self
        self._beat()
        scheduler.note(self.address, f"starts as {process.name}")

    def cpu_seconds(self) -> float:
        """The CPU time of the process so far."""
        return 0.0

    def serving(self, services: StreamServices) -> StreamServices:
        """What serves the streams of the process that starts. A test may change it."""
        return services

    def _share(self, redis: SimulatedRedis) -> None:
        """Join the ledger of the guard that all servers share."""
        assert self._guard is not None
        clock, process = self.network.scheduler.clock, self.process
        guard = Limiter(GUARDED, self._guard, GuardMetrics(METRICS, "slow", "1"), clock, shared=True)
        self.guarded = SharedGuarded(redis, self._guard, guard, process)
        process.observers.append(self.guarded)
        self.coordinator = Coordinator(
            self.guarded.ledgers, [] if guard.sharing is None else [guard.sharing], clock=clock,
            new_id=lambda: f"{process.name} {self.loop.next_number()}",
        )  # fmt: skip
        self.budgets = Budgets(
            self.coordinator, SHARED, fail_open=self._guard.without_coordination is WithoutCoordination.FAIL_OPEN,
            clock=clock, wall=clock,
        )  # fmt: skip
        self.guarded.budgets = self.budgets
        self._joining = self.loop.create_task(self.coordinator.open())

    def is_alone(self) -> bool:
        """Whether its limits should be shared and are not coordinated."""
        return isinstance(self.guarded, SharedGuarded) and self.guarded.away

    def taken(self) -> float | None:
        """When the current call took of its job's budget what it is expected to spend; None if it has no budget."""
        mine, jobs = current_scope.get().spending, self.budgets.kept() if self.budgets is not None else ()
        calls = (call for job in jobs for call in job.running if call.spending is mine)
        return next((call.until - call.timeout - GRACE_SECONDS for call in calls), None)

    @property
    def claiming(self) -> list["asyncio.Task[None]"]:
        """The tasks that send the claims of shared guards."""
        return list(self.coordinator._tasks.values()) if self.coordinator is not None else []

    def _look(self) -> None:
        """After an iteration of the loop of a function. Raises Violation."""
        if self.bounds is not None:
            self.bounds.look_at_turns(self)
        if self.guarded is not None:
            self.guarded.look()

    def start_again(self) -> None:
        """Start, unless something else has done so meanwhile."""
        if not self.running:
            self.start()

    @property
    def running(self) -> bool:
        return self.process.alive

    def tell_progress(self, request: Any, answer: Callable[[Any], object]) -> None:
        """Answer GetProgress, once the process runs."""

        async def told() -> None:
            answer(await self.service.get_progress(request, _Anonymous()))

        self.loop.call_soon_threadsafe(lambda: self.loop.create_task(told()))

    def accept(self, client: ClientStream) -> "ServerStream":
        return ServerStream(self, client)

    def crash(self) -> None:
        """End without any clean-up, as SIGKILL does."""
        if self.process.alive:
            self.network.scheduler.note(self.address, "crashes")
            self.process.kill()
            self.ended.append((self.process, self.host, self.loops))
            self.network.reset(self.address)

    def freeze(self, seconds: float) -> None:
        if self.process.alive and not self.process.frozen:
            process = self.process
            self.network.scheduler.note(self.address, f"freezes for {seconds:.3f} s")
            process.freeze()
            for link in self.network.links_of(self.address):
                self.network.stall(link)
            self.network.process.after(seconds, process.thaw)

    def drain(self, grace: float) -> None:
        """Shut down gracefully, as SIGTERM does: no new streams, and an end after the last one or the grace."""
        if self.process.alive:
            self.network.scheduler.note(self.address, f"drains for {grace:.3f} s")
            self.ending = True
            self.loop.call_soon_threadsafe(self._drain, self.network.scheduler.now + grace)

    def _drain(self, until: float) -> None:
        self.service.drain()

        def look(process: Process) -> None:
            if process is self.process and process.alive:
                if not self.service.streams or self.network.scheduler.now >= until:
                    self._leave(process)
                else:
                    process.after(0.05, look, process)

        look(self.process)

    def _leave(self, process: Process) -> None:
        """End, after what shared guards have leased was returned."""
        if self.coordinator is None:
            self.crash()
            return
        closing = self.loop.create_task(self.coordinator.close())
        closing.add_done_callback(lambda _: self.crash() if process is self.process else None)

    def _beat(self) -> None:
        self.service.end_idle_streams()
        self.service.observe()
        if self.budgets is not None:
            self.budgets.sweep()
        self.loop.call_later(self.beat_seconds, self._beat)


class _Anonymous:
    """What gRPC passes as context of a call without credentials."""

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    def auth_context(self) -> dict[str, Any]:
        return {}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise RpcLost(code, details)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """A simulated call is never told that its answer was read."""


class ServerStream:
    """The server's end of a stream: the requests, and what gRPC passes as context."""

    def __init__(self, server: SimulatedServer, client: ClientStream) -> None:
        self._server, self._client = server, client
        self._requests: deque[bytes | None] = deque()
        self._arrived: asyncio.Future[None] | None = None
        self._room = WINDOW
        self._read = 0
        """Messages that were read, and of which the client was not told."""
        self._freed: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._cut = False
        self._process = server.process
        self._over_at: float | None = None
        """When the last message was sent."""
        server.streams[self] = None
        server.loop.call_soon_threadsafe(self._start)

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    def auth_context(self) -> dict[str, Any]:
        return {}

    def peer(self) -> str:
        return f"ipv4:{self._client.caller}:1"

    async def write(self, message: bytes) -> None:
        while not self._room and not self._cut:
            self._freed = self._server.loop.create_future()
            await self._freed
        if self._cut:
            raise RpcLost(grpc.StatusCode.CANCELLED, "the client is gone")
        if read_response(message).envelope.WhichOneof("response") in ENDS:
            self._over_at = self._server.network.scheduler.now
        self._room -= 1
        self._client.to_client.send(len(message), self._client.receive, message)

    def receive(self, message: bytes | None) -> None:
        """A message has reached the server's host."""
        server = self._server
        if message is not None and server.memory is not None and len(message) > server.memory and server.running:
            server.crash()
            server.network.process.after(RESTART_SECONDS, server.start_again)
            return
        self._server.loop.call_soon_threadsafe(self._put, message)

    def consumed(self) -> None:
        self._server.loop.call_soon_threadsafe(self._free)

    def cut(self) -> None:
        self._server.loop.call_soon_threadsafe(self._lose)

    def _start(self) -> None:
        if not self._cut:
            self._task = self._server.loop.create_task(self._server.service.execute(self._messages(), self))
            self._task.add_done_callback(self._ended)

    async def _messages(self) -> AsyncIterator[bytes]:
        while True:
            while not self._requests:
                self._arrived = self._server.loop.create_future()
                await self._arrived
            message = self._requests.popleft()
            if message is None:
                return
            self._read += 1
            if self._read == UPDATE:
                self._read = 0
                self._client.to_client.send(0, self._client.consumed)
            yield message

    def _put(self, message: bytes | None) -> None:
        if self._server.bounds is not None:
            self._server.bounds.received(message)
        self._requests.append(message)
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _free(self) -> None:
        self._room += UPDATE
        if self._freed is not None and not self._freed.done():
            self._freed.set_result(None)

    def _lose(self) -> None:
        if not self._cut:
            self._cut = True
            if self._freed is not None and not self._freed.done():
                self._freed.set_result(None)
            if self._task is not None and not self._task.done():
                able = self._process.alive and not self._process.was_frozen
                if able and self._room and self._over_at is not None:
                    seconds = self._server.network.scheduler.now - self._over_at
                    self._server.longest_end = max(self._server.longest_end, seconds)
                self._task.cancel()
            else:
                self._server.streams.pop(self, None)

    def _status(self) -> Exception | None:
        """The status of a stream whose handler has returned."""
        return None

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._server.streams.pop(self, None)
        if task.cancelled():
            error: Exception | None = RpcLost(grpc.StatusCode.CANCELLED, "cancelled by the server")
        elif (failure := task.exception()) is not None:
            self._server.network.scheduler.fail(failure)
            return
        else:
            error = self._status()
        self._client.to_client.send(0, self._client.end, error)
