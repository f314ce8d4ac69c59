"""Ledgers are where the claims of a member go: a Redis, the process that started this one, or memory."""

import asyncio
import collections
import contextlib
import hashlib
import json
import logging
import socket
import socketserver
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from remote_udf.sockets import socket_directory
from udf_server.base.errors import InvalidConfig
from udf_server.limits.sharing.claims import CoordinationFailed, LedgerAnswer, LimitClaim, read_grant
from udf_server.limits.sharing.ledger import Ledger
from udf_server.limits.sharing.redis_script import SCRIPT
from udf_server.stores.redis_client import CONNECTIONS, redis_client

__all__ = ["LINE_BYTES", "LedgerServer", "Ledgers", "LocalLedgers", "RedisLedgers", "SocketLedgers", "ledgers_from_url"]

ANSWER_SECONDS = 2.0
"""A claim without an answer in this time has failed."""
LINE_BYTES = 1 << 20
"""Longest message on the socket between worker processes and the process that started them."""
SHARED = "shared"
"""The identity of ledgers that any number of servers may have in common."""
MOST_BUDGETS = 10_000
"""Number of budgets that are kept in memory. If there are more, that which was used least recently is forgotten; jobs
that run claim again what they have spent."""
_PREFIX = "udf:limits:"


class Ledgers(ABC):
    """The ledgers of all shared limits, by name. Use it on one event loop."""

    identity: str
    """What servers have in common that count together; `shared` if any number of servers may."""

    @abstractmethod
    async def exchange(self, name: str, claim: LimitClaim) -> LedgerAnswer:
        """Send a claim to the ledger `name` and return its grant. Raises CoordinationFailed."""

    async def check(self) -> None:  # noqa: B027 - what is in this process always answers
        """Raises CoordinationFailed unless what keeps the ledgers answers."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connections. Safe to call twice."""


class LocalLedgers(Ledgers):
    """Ledgers in the memory of this process. They cannot be lost before the limits of this process are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._ledgers: dict[str, Ledger] = {}
        self._budgets: collections.OrderedDict[str, Ledger] = collections.OrderedDict()
        self.identity = uuid.uuid4().hex

    async def exchange(self, name: str, claim: LimitClaim) -> LedgerAnswer:
        return self.answer(name, claim)

    async def close(self) -> None:
        pass

    def answer(self, name: str, claim: LimitClaim) -> LedgerAnswer:
        """Do the same without waiting, on any thread."""
        with self._lock:
            if not claim["lasts"]:
                ledger = self._ledgers.setdefault(name, Ledger())
                answer = ledger.exchange(claim, self._clock())
                if claim["leave"] and not ledger.windows and list(ledger.members) == [claim["member"]]:
                    del self._ledgers[name]  # places have no past, and callers come and go
                return answer
            ledger = self._budgets.setdefault(name, Ledger())
            self._budgets.move_to_end(name)
            while len(self._budgets) > MOST_BUDGETS:
                self._budgets.popitem(last=False)
            return ledger.exchange(claim, self._clock())


class RedisLedgers(Ledgers):
    """Ledgers in a Redis. One script answers a claim, in one round trip."""

    def __init__(self, url: str, namespace: str) -> None:
        """Raises InvalidConfig if redis-py is not installed or the URL is not valid."""
        self._client, self._errors = redis_client(url, "coordination_url", LINE_BYTES, answer_seconds=ANSWER_SECONDS)
        self._script = self._client.register_script(SCRIPT)
        self._gate = asyncio.Semaphore(CONNECTIONS)
        # Others may have a Redis of their own at the same path.
        local = url.startswith("unix:")
        self.identity = (
            hashlib.sha256(f"{socket.gethostname()} {urlsplit(url).path}".encode()).hexdigest() if local else SHARED
        )
        self._prefix = f"{_PREFIX}{namespace}:"

    async def exchange(self, name: str, claim: LimitClaim) -> LedgerAnswer:
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._gate:
                answer = await self._script([self._prefix + name], [json.dumps(claim)])
        except Exception as error:  # the library raises errors of any class if something else than a Redis answers
            raise CoordinationFailed(f"Redis does not answer: {type(error).__name__}") from None
        return read_grant(answer)

    async def check(self) -> None:
        try:
            await self._client.ping()
        except Exception as error:
            raise CoordinationFailed(f"Redis does not answer: {type(error).__name__}") from None

    async def close(self) -> None:
        with contextlib.suppress(self._errors.RedisError, OSError):
            await self._client.aclose()


class SocketLedgers(Ledgers):
    """Ledgers of the process that started this worker, which listens on a Unix socket (`LedgerServer`)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.identity = hashlib.sha256(path.encode()).hexdigest()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._gate = asyncio.Lock()

    async def exchange(self, name: str, claim: LimitClaim) -> LedgerAnswer:
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._gate:
                return await self._ask(name, claim)
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            raise CoordinationFailed(f"the parent process does not answer: {type(error).__name__}") from None

    async def _ask(self, name: str, claim: LimitClaim) -> LedgerAnswer:
        done = False
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(self._path, limit=LINE_BYTES)
            reader, writer = self._streams
            writer.write(json.dumps([name, claim]).encode() + b"\n")
            await writer.drain()
            grant = read_grant(await reader.readuntil())
            done = True
            return grant
        finally:
            # After a timeout the answer may still arrive, and it must not be taken for that of another claim.
            if not done:
                await self.close()

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()


def ledgers_from_url(url: str, namespace: str) -> Ledgers:
    """The ledgers of the setting `coordination_url`. Raises InvalidConfig, whose message has no secret of the URL."""
    scheme, _, _ = url.partition(":")
    if scheme in ("redis", "rediss", "unix"):
        return RedisLedgers(url, namespace)
    if scheme == "parent":
        return SocketLedgers(unquote(urlsplit(url).path))
    raise InvalidConfig("setting 'coordination_url' does not begin with redis:, rediss: or unix:")


log = logging.getLogger(__name__)


class LedgerServer:
    """Listens on a Unix socket in a folder of its own, which only this user can open. Call `close` at the end."""

    def __init__(self) -> None:
        self._folder = socket_directory("udf-")
        path = Path(self._folder.name) / "ledgers"
        self.url = f"parent://{quote(str(path))}"
        """The setting `coordination_url` of the workers."""
        ledgers = LocalLedgers()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the worker has ended
                    while (line := self.rfile.readline(LINE_BYTES)).endswith(b"\n"):
                        try:
                            name, claim = json.loads(line)
                        except (TypeError, ValueError):
                            log.warning("a worker's connection was closed: it has sent no claim")
                            return
                        self.wfile.write(json.dumps(ledgers.answer(name, claim)).encode() + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                log.exception("a worker's claim was not answered")

        self._server = Server(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, name="ledgers", daemon=True).start()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()
