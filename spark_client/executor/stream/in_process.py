"""LocalTransport runs functions in the process of their caller, as a server does, without a network."""

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING

from remote_udf.v1 import service_pb2
from spark_client.base.server_load import ServerLoad
from spark_client.base.transport import Place, Question, Responses, TransportLost

if TYPE_CHECKING:
    from udf_server.declaring.functions import Function
    from udf_server.plugins.sources import Sources

__all__ = ["LocalTransport", "local_transport"]

MESSAGES_QUEUED = 4
"""Messages of one stream that wait for the other end, in each direction, as many as a network would buffer."""


class LocalTransport:
    """Streams to functions in this process, which are run as on a server, including hooks, options and deadlines.

    It starts a thread with an event loop at once. `close` calls the functions' `close` hooks and stops the thread.
    """

    def __init__(self, *functions: "Function", seed: int = 0, message_bytes: int = 64 << 20) -> None:
        """`seed` is for the jitter of retries. Raises FunctionClash if two functions have the same name and version."""
        # Imported here, because the server's package is installed only where functions are tested.
        from udf_server.streams.in_process import InProcessServer  # noqa: PLC0415

        self._server = InProcessServer(functions, seed=seed, message_bytes=message_bytes)
        self.metrics = self._server.metrics
        """The metrics that a server would publish for these functions; `metrics.registry` is a Prometheus registry."""
        self._plugin = ""
        self._sources: Sources | None = None
        self._streams: set[_LocalStream] = set()
        self._replaced = False
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="local-transport", daemon=True)
        self._thread.start()

    @classmethod
    def load(cls, plugin: str) -> "LocalTransport":
        """Load the functions of a module ("geo_udfs") or file ("./geo_udfs.py"). Raises PluginError, which names it."""
        from udf_server.streams.in_process import functions_of  # noqa: PLC0415

        functions, sources = functions_of(plugin)
        transport = cls(*functions)
        transport._plugin, transport._sources, transport._server.code = plugin, sources, sources.identity
        return transport

    def servers(self) -> Sequence[str]:
        return (_LocalStream.server,)

    def execute(self, requests: Iterator[bytes], avoid: Container[str] = (), place: Place | None = None) -> Responses:
        with self._lock:
            if not self._closed:
                stream = _LocalStream(self._loop, requests, self._server.execute, self._forget)
                self._streams.add(stream)
                stream.start()
                return stream
        if not self._replaced:
            raise TransportLost("the local transport is closed")
        return local_transport(self._plugin).execute(requests, avoid)

    def ask_loads(self, server: str) -> Question | None:
        return None

    def heard_load(self, server: str, load: ServerLoad) -> None:
        """There is no other server to choose."""

    def list_functions(self, seconds: float = 0.0) -> Sequence[service_pb2.ListFunctionsResponse]:
        return [self._server.list_functions()]

    def close(self) -> None:
        """Cancel open streams, run the `close` hooks of functions that were used, and stop. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        asyncio.run_coroutine_threadsafe(self._server.host.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def edited(self) -> bool:
        """Whether the plugin's file was edited since it was loaded, or a file that it imports from its folder."""
        return self._sources is not None and self._sources.edited()

    def replace(self) -> None:
        """Have the plugin loaded again by the next transport, and close this one once its streams have ended."""
        if self._sources is not None:
            self._sources.forget()
        with self._lock:
            self._replaced = True
            unused = not self._streams
        if unused:
            self._close_aside()

    def __enter__(self) -> "LocalTransport":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            if left := asyncio.all_tasks(self._loop):
                self._loop.run_until_complete(asyncio.wait(left))
        finally:
            self._loop.close()

    def _forget(self, stream: "_LocalStream") -> None:
        with self._lock:
            self._streams.discard(stream)
            unused = self._replaced and not self._streams
        if unused:
            self._close_aside()

    def _close_aside(self) -> None:
        # The last stream ends on the loop, which `close` stops.
        threading.Thread(target=self.close, name="local-transport-close", daemon=True).start()


Run = Callable[[AsyncIterator[bytes], Callable[[bytes], Awaitable[None]]], Awaitable[None]]
"""InProcessServer.execute."""


class _LocalStream:
    """One stream: a task on the event loop, a thread that feeds it, and the queues between them."""

    same_host = False  # In one process, memory need not be shared.
    server = "local"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        requests: Iterator[bytes],
        run: Run,
        ended: "Callable[[_LocalStream], None]",
    ) -> None:
        self._loop = loop
        self._given = requests
        self._run = run
        self._ended = ended
        # Both queues are bounded by their semaphores.
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room_for_requests = threading.Semaphore(MESSAGES_QUEUED)
        self._responses: queue.SimpleQueue[bytes | TransportLost | None] = queue.SimpleQueue()
        self._room_for_responses = asyncio.Semaphore(MESSAGES_QUEUED)
        self._over = False
        self._cancelled = False

    def start(self) -> None:
        self._task = asyncio.run_coroutine_threadsafe(self._serve(), self._loop)
        # Not in _serve, which does not start at all if it is cancelled at once.
        self._task.add_done_callback(lambda _: self._end())
        threading.Thread(target=self._feed, name="local-requests", daemon=True).start()

    def __next__(self) -> bytes:
        item = None if self._cancelled else self._responses.get()
        if self._cancelled:
            raise TransportLost("cancelled")
        if item is None:
            self._responses.put(None)
            raise StopIteration
        if isinstance(item, TransportLost):
            self._responses.put(item)
            raise item
        self._post(self._room_for_responses.release)
        return item

    def cancel(self) -> None:
        self._cancelled = True
        self._responses.put(None)
        self._task.cancel()

    def distrust(self, seconds: float = 0.0, *, leave: bool = False) -> None:
        """There is no other server."""

    async def _serve(self) -> None:
        last: TransportLost | None = None
        try:
            await self._run(self._received(), self._write)
        except Exception as error:
            last = TransportLost(f"the stream failed: {error!r}")
        finally:
            self._responses.put(last)

    def _end(self) -> None:
        self._over = True
        self._room_for_requests.release()
        self._ended(self)

    async def _received(self) -> AsyncIterator[bytes]:
        while (message := await self._requests.get()) is not None:
            self._room_for_requests.release()
            yield message

    async def _write(self, message: bytes) -> None:
        await self._room_for_responses.acquire()
        self._responses.put(message)

    def _feed(self) -> None:
        for message in self._given:
            self._room_for_requests.acquire()
            if self._over:
                return
            self._post(self._requests.put_nowait, message)
        self._post(self._requests.put_nowait, None)

    def _post(self, callback: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)


_locals: dict[tuple[int, str], LocalTransport] = {}
_lock = threading.Lock()


def local_transport(plugin: str) -> LocalTransport:
    """The transport of this process to the functions of a module or file, for the target "local:...".

    If the plugin was edited, it is loaded again, as new modules. Raises PluginError if that fails; the next call tries
    again.
    """
    key = (os.getpid(), plugin)
    with _lock:
        known = _locals.get(key)
        if known is not None and known.edited():
            del _locals[key]
            known.replace()
            known = None
        if known is None:
            known = _locals[key] = LocalTransport.load(plugin)
        return known
