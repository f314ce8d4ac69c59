"""Server runs the gRPC and HTTP servers of one process, from start to graceful shutdown."""

import asyncio
import contextlib
import functools
import logging
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from prometheus_client import ProcessCollector

from remote_udf.tracing import flush_spans, prepare_tracing
from udf_server.base.extra_metrics import GuardMetrics
from udf_server.base.metrics import ServerMetrics
from udf_server.base.open_files import LOOP_FILES, open_files
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.declaring.hooks import CPU
from udf_server.hosting.executors import HostLimits
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.hosting.load import ReportedLoad
from udf_server.hosting.registry import FunctionHost, Registry, check_guards, check_weights
from udf_server.http.exposition import page_of
from udf_server.http.server import HttpServer
from udf_server.limits.budgets import Budgets
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import WithoutCoordination
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledgers import LocalLedgers, ledgers_from_url
from udf_server.page.site import Site
from udf_server.page.sources import LocalSource
from udf_server.plugins.metrics import PLUGIN_METRICS
from udf_server.security.access import Access, access_rules
from udf_server.security.callers import OTHERS
from udf_server.security.files import WatchedFiles
from udf_server.serving.config import ServerConfig
from udf_server.serving.devices import device_inside
from udf_server.serving.exposure import check_exposure, tokens_allowed
from udf_server.serving.grpc_server import GrpcServer
from udf_server.serving.membership import Membership, registry_of
from udf_server.serving.resources import limited_cores
from udf_server.serving.upkeep import LoopWatch, Upkeep
from udf_server.stores.entries import sealing
from udf_server.stores.opening import KeyValueStores, store_from_url
from udf_server.streams.entrance import Edits
from udf_server.streams.relay import Relay
from udf_server.streams.routes import read_routes
from udf_server.streams.service import UdfService
from udf_server.streams.services import Admission, AdmissionLimits, StreamLimits, StreamServices

__all__ = ["Server", "running_server"]

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
"""How long sending the status of the last streams may take after the streams have ended."""


class Server:
    """One server in this process. Call `start`, then `stop`; `running_server` does both."""

    def __init__(
        self, config: ServerConfig, registry: Registry | None = None, *, share_port: bool = False,
        device: str | None = None, membership: Membership | None = None, edits: Edits | None = None,
        listening: socket.socket | None = None, parent: str | None = None,
    ) -> None:  # fmt: skip
        """Without a registry, the plugins are loaded. Raises PluginError or InvalidConfig, before anything listens.

        With `share_port`, other processes may listen on the same port. `device` is the one that this process sees, by
        the name that it has in the configuration. `membership` says which of the processes of a server with groups it
        is; None without groups. Then the parent process checks the settings that name functions. `edits` decides
        whether a stream still gets this process, and `listening` is the socket of the HTTP server, if processes that
        follow each other share it. `parent` is the URL of the ledgers of the process that has started this one.
        """
        check_exposure(config)
        self._share_port, self._edits, self._listening = share_port, edits, listening
        self.config = config
        self.registry = registry = registry_of(config) if registry is None else registry
        self._membership, self._device = membership or Membership(), device
        if self._membership.group is None:
            check_weights(config.weights, registry)
            check_guards(config.guards, registry)
        self.metrics = self._make_metrics()
        self._guards = self._make_guards()
        variable = config.cache_encryption_variable
        sealed = sealing(variable, os.environ) if variable else None
        self._host = self._make_host(KeyValueStores(config.cache_url, config.cache_max_bytes, sealing=sealed))
        self.registry = self._host.registry
        self._coordinator, self._budgets = self._make_coordinator()
        self._access = self._make_access()
        self._cache = OutcomeCache(
            store_from_url(config.cache_url, config.cache_max_bytes), self.metrics,
            callers_differ=self._access.restricted, code=edits.code if edits else "", sealing=sealed,
        )  # fmt: skip
        self._relay = self._make_relay()
        alone = not share_port or edits is not None
        self.service = UdfService(
            self._make_services(),
            self._access,
            alone=alone or self._membership.alone,
            weights=config.weights,
            relay=self._relay,
            route=self._membership.route,
            # A process of several uses one core, and so does one without a limit: threads share an interpreter.
            load=ReportedLoad(cores=limited_cores() or 1 if alone else 1),
            # Whether guards are shared with other servers or not, streams are those of this one.
            coordinator=None if parent is None else Coordinator(ledgers_from_url(parent, ""), ()),
        )
        self._upkeep = Upkeep(self._host, self.service, self._cache, self._budgets, self.metrics)
        self._grpc: GrpcServer | None = None
        self._http: HttpServer | None = None
        self._watch: LoopWatch | None = None
        self._stopped = False
        self.target = ""
        """Address for clients; empty before `start`."""
        self.metrics_url = ""

    async def start(self) -> None:
        """Listen and become ready. Raises InvalidConfig if the server cannot listen on an address."""
        await self.prepare()
        await self.listen()

    async def prepare(self) -> None:
        """Do all that can be done before clients come. Call `listen` next. Raises InvalidConfig."""
        try:
            await self._cache.open()
            await self._coordinator.open()
            if (limits := self.config.coordinated) and self.config.coordination_url is None:
                log.info("limits apply per process: no coordination_url is set", extra={"limits": limits})
            if not list(self.registry) and self._membership.group is None:
                log.warning("no function is served: install a plugin on this machine, or name one with 'plugin'")
            for ignored in self._host.ignored():
                # A function that this process does not have may be in another group.
                if ignored.function or self._membership.group is None:
                    shown = {"setting": ignored.setting, "function": ignored.function, "reason": ignored.reason}
                    log.log(
                        logging.INFO if ignored.expected else logging.WARNING, "a setting has no effect", extra=shown
                    )
            # OpenTelemetry is imported here so that the first stream does not wait for it.
            prepare_tracing("udf-server")
            self._http = self._start_http()
            self.metrics_url = self._http.url
        except BaseException:
            await self._give_up()
            raise

    async def listen(self) -> None:
        """Listen and become ready. Raises InvalidConfig if the server cannot listen on an address."""
        try:
            self._grpc = GrpcServer(
                self.config, self.service, reflects=not self._access.restricted, share_port=self._share_port,
                on_reload=functools.partial(self.metrics.reloads, "tls"), loops=self._host.loops,
                membership=self._membership,
            )  # fmt: skip
            self.target = await self._grpc.start()
        except BaseException:
            await self._give_up()
            raise
        self._check_files()
        self._upkeep.start()
        self._watch = LoopWatch(self._host, self._loop_blocked)
        await self._set_ready(True)
        device = {} if self._device is None else {"device": self._device}
        log.info("server started", extra={"target": self.target, "metrics": self.metrics_url, **device})

    async def _give_up(self) -> None:
        if self._grpc is not None:
            await self._grpc.stop(grace=0)
        if self._http is not None:
            self._http.close()
        await self._cache.close()
        await self._coordinator.close()
        self._grpc = self._http = None

    async def stop(self, drain_seconds: float | None = None, *, replaced: bool = False) -> None:
        """Refuse new streams, let open ones end within the limit, then stop. Safe to call twice.

        If the process is `replaced` by another one at its address, it listens no longer from the beginning.
        """
        if self._grpc is None and self._http is not None:
            await self._give_up()  # it was prepared, and did not listen
        if self._stopped or self._grpc is None:
            return
        self._stopped = True
        limit = self.config.drain_seconds if drain_seconds is None else drain_seconds
        await self._set_ready(False)
        self.service.drain()
        closing = None
        if replaced or self._membership.socket is not None:
            # Clients that move, or open a stream, reach the process that replaces this one, at the same port.
            closing = asyncio.create_task(self._grpc.stop(grace=limit + FLUSH_SECONDS))
        log.info("draining", extra={"streams": self.service.streams, "seconds": limit})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self.service.wait_idle()
                await self._cache.wait_for_orphans()
        # Streams that are cancelled from here on leave no calls behind.
        await self._cache.orphans.close()
        if self.service.streams:
            log.warning("streams cancelled after the drain timeout", extra={"streams": self.service.streams})
            await self._grpc.stop(grace=0)
        else:
            await self._grpc.stop(grace=FLUSH_SECONDS)
        if closing is not None:
            await closing
        if self._relay is not None:
            await self._relay.close()
        if self._watch is not None:
            self._watch.stop()
        await self._host.close()
        await self._cache.close()
        await self._coordinator.close()
        await self.service.open_streams.close()
        self._upkeep.stop()
        if self._http is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._http.close)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.get_running_loop().run_in_executor(None, flush_spans)
        log.info("server stopped")

    async def give_way(self) -> None:
        """Close the web UI, which another process has taken over, and wait until the last stream has ended."""
        if self._http is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._http.close)
        await self.service.wait_idle()

    def _make_metrics(self) -> ServerMetrics:
        """The metrics, with the series that begin at 0, because rates need them first."""
        metrics = ServerMetrics()
        metrics.registry.register(PLUGIN_METRICS)
        ProcessCollector(registry=metrics.registry)
        for function in self.registry:
            metrics.function(function.spec.name, function.spec.version)
        if self._device is not None:
            metrics.device.labels(self._device).set(1)
        budgets = {name: caller.budget for name, caller in self.config.callers.items() if name != OTHERS}
        metrics.name_callers({name: dict(each.amounts) if each else () for name, each in budgets.items()})
        return metrics

    def _make_host(self, stores: KeyValueStores) -> FunctionHost:
        """What hosts the functions. Raises InvalidConfig if one needs a store that outlives this process."""
        config = self.config
        for function in self.registry:
            if function.durable_store:
                stores.require_durable(function.spec.key)
        limits = HostLimits(config.calls_per_function, config.threads_per_function, config.lost_calls_per_function)
        device = CPU if self._device is None else device_inside(self._device)
        return FunctionHost(self.registry, limits=limits, defaults=config.functions, stores=stores, device=device)

    def _make_services(self) -> StreamServices:
        config = self.config
        limits = StreamLimits(
            config.max_message_bytes, config.max_stream_rows, config.max_stream_bytes, config.max_stream_result_bytes,
            config.shared_memory,
        )  # fmt: skip
        admission = AdmissionLimits(
            config.max_function_rows, config.max_server_bytes, config.max_streams, config.max_streams_per_caller,
            config.idle_seconds,
        )  # fmt: skip
        return StreamServices(
            self._host, self.metrics, limits, Admission(admission), guards=self._guards, budgets=self._budgets,
            cache=self._cache, edits=self._edits,
        )  # fmt: skip

    def _make_guards(self) -> dict[str, Limiter]:
        """The guards by function and version. An invalid one fails the start, not the first stream.

        Raises InvalidConfig.
        """
        guards = {}
        for function in self.registry:
            spec, settings = function.spec, self.config.guards.get(function.spec.name)
            if settings is not None:
                metrics = GuardMetrics(self.metrics, spec.name, spec.version)
                guard = Limiter(spec.key, settings, metrics, shared=self.config.coordination_url is not None)
                guard.costs.require(function)
                guards[spec.key] = guard
        return guards

    def _make_coordinator(self) -> tuple[Coordinator, Budgets]:
        """What shares the guards with other processes, and the budgets of jobs. Raises InvalidConfig."""
        url = self.config.coordination_url
        fail_open = self.config.budgets_without_coordination == WithoutCoordination.FAIL_OPEN
        ledgers = LocalLedgers() if url is None else ledgers_from_url(url, self.config.coordination_namespace)
        sharing = [guard.sharing for guard in self._guards.values() if guard.sharing is not None]
        observe = (lambda seconds, good: None) if url is None else self.metrics.coordinated
        coordinator = Coordinator(ledgers, sharing, observe=observe)
        where = ledgers if isinstance(ledgers, LocalLedgers) else coordinator
        return coordinator, Budgets(where, ledgers.identity, fail_open=fail_open)

    def _make_relay(self) -> Relay | None:
        """What passes streams on to other groups, if this process is to do so."""
        if self._membership.routes is None:
            return None
        # Once a group was reloaded, no stream is passed on to its old process.
        routes = WatchedFiles([self._membership.routes], read_routes, look_seconds=0.0)
        for name in self.config.groups:
            self.metrics.relayed.labels(name)
        return Relay(routes, self.registry, lambda group: self.metrics.relayed.labels(group).inc())

    def _loop_blocked(self, hosted: HostedFunction) -> None:
        self.metrics.loop_blocked.labels(hosted.spec.name, hosted.spec.version).inc()

    def _make_access(self) -> Access:
        config, reloads = self.config, self.metrics.reloads
        rules = None
        if config.access_file:
            rules = access_rules(Path(config.access_file), on_reload=lambda good: reloads("access", good))
        return Access(rules, certificates=config.tls_client_ca is not None, settings=config.callers)

    def _start_http(self) -> HttpServer:
        return HttpServer(
            self.config.metrics_host, self.config.metrics_port, functools.partial(page_of, self.metrics.registry),
            self._upkeep.is_alive, self._unready, self._site(), listening=self._listening,
        )  # fmt: skip

    def _site(self) -> Site | None:
        config = self.config
        if not config.page:
            return None
        source = LocalSource(
            self.service, self._access, asyncio.get_running_loop(), lambda: not self._unready(),
            try_calls=config.try_calls, tokens_allowed=tokens_allowed(config), device=self._device,
        )  # fmt: skip
        return Site(source, try_calls=config.try_calls, host=config.metrics_host)

    async def _set_ready(self, ready: bool) -> None:
        self.metrics.ready.set(ready)
        if self._grpc is not None:
            await self._grpc.set_ready(ready)

    def _unready(self) -> str:
        """Why the server accepts no streams; empty if it does."""
        if not self._upkeep.is_alive():
            return "its event loop does not run"
        if self._grpc is None or self.service.draining:
            return "it starts, or shuts down"
        files = open_files()
        return "" if files is None or files.for_loops else str(files)

    def _check_files(self) -> None:
        """Warn if not all functions can be used at a time."""
        files, loops = open_files(), self._host.loops
        if files is not None and files.for_loops < loops:
            log.warning(
                "the limit of open files (ulimit -n) is too low for all functions at a time",
                extra={
                    "limit": files.most, "functions": loops, "enough_for": files.for_loops,
                    "needed": files.open + files.spare + loops * LOOP_FILES,
                },
            )  # fmt: skip


@contextlib.asynccontextmanager
async def running_server(config: ServerConfig | None = None, registry: Registry | None = None) -> AsyncIterator[Server]:
    """A started server, which is stopped at the end. By default it uses free ports of this machine."""
    server = Server(config or ServerConfig(port=0, metrics_port=0), registry)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(drain_seconds=0.0)
