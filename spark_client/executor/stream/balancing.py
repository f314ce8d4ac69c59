"""When a stream reconnects, and to which server: another one may have less to do."""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import grpc

from remote_udf.v1 import message_pb2 as pb
from remote_udf.v1 import service_pb2
from spark_client.base.server_load import LOAD_MARGIN, ServerLoad
from spark_client.base.transport import Question, Transport
from spark_client.executor.stream.channels import FutureAnswer
from spark_client.executor.stream.connection import Connection

__all__ = ["Balancer", "LoadCall", "LoadQuestion", "Reconnecting"]

ASK_SECONDS = 30.0
"""Mean time between two questions of a stream."""
SOON_SECONDS = 5.0
"""Time in which a stream asks whose server has changed, or whose load has risen."""
WAIT_SECONDS = 0.1
"""How long a stream that has no rows in flight waits for answers."""
STALE_SECONDS = 5.0
"""Answers that a stream looks at later are not used, because other streams have reconnected since."""
LoadCall: TypeAlias = FutureAnswer[service_pb2.GetProgressResponse]


class Balancer:
    """Compares the server of one stream with random others.

    Two servers are compared, not all, so that not every stream chooses the one that is idle at the moment.
    """

    def __init__(
        self, transport: Transport, clock: Callable[[], float], uniform: Callable[[float, float], float],
        most_seconds: float,
    ) -> None:  # fmt: skip
        """`most_seconds` bounds the mean time between two questions."""
        self._seconds = min(ASK_SECONDS, most_seconds)
        self._transport, self._clock, self._uniform = transport, clock, uniform
        self._server = ""
        self._load: ServerLoad | None = None
        self._asked, self._due = 0.0, math.inf
        self._question: Question | None = None

    @property
    def knows_load(self) -> bool:
        """Whether the server tells its load. Older servers do not."""
        return self._load is not None

    def connected(self, server: str, load: ServerLoad | None, *, chosen: bool, waiting: bool) -> str | None:
        """The stream is on this server from now on. Returns a better server, if one is found at once.

        Args:
            server: Its address.
            load: Its load; None from older servers, which are not compared.
            chosen: The server was chosen as the better of two.
            waiting: Rows wait to be sent again. Then the servers are compared soon instead of now.
        """
        self.stop()
        self._server, self._load, self._due = server, load, math.inf
        if load is None:
            return None
        self._transport.heard_load(server, load)
        if chosen or waiting or load.quiet:
            self._due = self._clock() + (self._uniform(0.0, SOON_SECONDS) if waiting else self._pause())
            return None
        self._due = self._clock()
        return self.better(self._due, idle=True)

    def heard(self, told: pb.Load) -> None:
        """The server tells its load while its results take long. If it has risen, servers are compared soon."""
        load, before = ServerLoad.read(told), self._load
        if load is None or before is None:
            return
        self._load = load
        if load.load - before.load > LOAD_MARGIN:
            self._due = min(self._due, self._clock() + self._uniform(0.0, SOON_SECONDS))

    def better(self, now: float, *, idle: bool) -> str | None:
        """The address of a server that is better, if there is news; otherwise None.

        It waits for answers only if the stream is `idle`: without rows in flight, it may not look again for long.
        """
        if self._question is not None and now - self._asked > STALE_SECONDS:
            self.stop()
            self._due = now
        if (question := self._question) is None:
            if now < self._due:
                return None
            question = self._question = self._transport.ask_loads(self._server)
            self._asked, self._due = now, now + self._pause()
            if question is None:
                return None
        if idle:
            question.wait(WAIT_SECONDS)
        if not question.done:
            return None
        answers, self._question = question.answers(), None
        mine = answers.get(self._server)
        if mine is None:
            return None
        self._load = mine
        others = [address for address, load in answers.items() if address != self._server and mine.exceeds(load)]
        return others[0] if others else None

    def stop(self) -> None:
        """Give up a question that runs. Safe to call twice, from any thread."""
        question, self._question = self._question, None
        if question is not None:
            question.cancel()

    def _pause(self) -> float:
        # Streams that began together do not ask together.
        return self._seconds * self._uniform(0.5, 1.5)


class LoadQuestion(Question):
    """Calls of GetProgress that run. Use it on one thread."""

    def __init__(self, calls: Mapping[str, LoadCall], ended: Callable[[Mapping[str, ServerLoad]], object]) -> None:
        """`calls` has a call by the address of each server. `ended` gets the loads of those that have answered."""
        self._calls, self._ended = calls, ended

    @property
    def done(self) -> bool:
        return all(call.done() for call in self._calls.values())

    def wait(self, seconds: float) -> None:
        for call in self._calls.values():
            try:
                call.result(timeout=seconds)
            except grpc.FutureTimeoutError:
                return
            except (grpc.RpcError, grpc.FutureCancelledError):
                continue

    def answers(self) -> Mapping[str, ServerLoad]:
        found: dict[str, ServerLoad] = {}
        for address, call in self._calls.items():
            try:
                response = call.result()
            except (grpc.RpcError, grpc.FutureCancelledError):
                continue  # an older server, or one that is gone: whoever sends rows to it finds out
            if response.HasField("load") and (load := ServerLoad.read(response.load)) is not None:
                found[address] = load
        self._ended(found)
        return found

    def cancel(self) -> None:
        for call in self._calls.values():
            call.cancel()
        self._ended({})


class Reconnecting:
    """Decides when a stream reconnects, and that no rows are in flight when it does.

    A stream changes its server if that drains, if another has less to do, or if the connection is old.

    An old connection is replaced only if its server tells no load, or is at the only address, which may be that of a
    load balancer. Otherwise servers are compared, and the stream rests, so that it reads what its server says.
    """

    def __init__(
        self, transport: Transport, clock: Callable[[], float], uniform: Callable[[float, float], float],
        max_seconds: float, may_change: Callable[[], bool],
    ) -> None:  # fmt: skip
        """`max_seconds` is the age of old connections. `may_change` tells whether there is more than one server."""
        self.wanted = False
        """Whether the stream reconnects once all rows are answered. No more rows are sent on this connection."""
        self.preferred: str | None = None
        """The server to which it reconnects, because that has less to do."""
        self._clock, self._may_change = clock, may_change
        self._balancer = Balancer(transport, clock, uniform, max_seconds)
        # The age is random, so that the tasks of a job do not all reconnect at the same time.
        self._max_age = max_seconds * uniform(0.75, 1.0)
        self._since = 0.0
        """The connection is old, or the stream rests, when `_max_age` seconds have passed since this time."""
        self._resting = False
        """Whether all rows are to be answered before the next ones are sent, so that what the server says is read, such
        as that it drains: with little input a stream has room for long, and is not read."""

    def hold_rows(self, rows_in_flight: int) -> bool:
        """Whether no rows may be sent until those in flight are answered."""
        # Another thread may find out meanwhile that the server drains.
        if not self.wanted and self._wants(idle=not rows_in_flight):
            self.wanted = True
        if (self.wanted or self._resting) and rows_in_flight:
            return True
        self._resting = False
        return False

    def heard(self, progress: pb.Progress) -> None:
        """The server tells its load, or that it drains."""
        if progress.HasField("load"):
            self._balancer.heard(progress.load)
        if progress.draining:
            self.wanted = True

    def connected(self, connection: Connection, *, waiting: bool = False) -> None:
        """Begin to compare the server of a new connection with others. `waiting` if rows wait to be sent on it."""
        chosen, self._since = self.preferred is not None, connection.opened_at
        self.preferred = self._balancer.connected(connection.server, connection.load, chosen=chosen, waiting=waiting)
        self.wanted = self.preferred is not None

    def stop(self) -> None:
        """Compare no more. Safe to call twice, from any thread."""
        self._balancer.stop()

    def _wants(self, *, idle: bool) -> bool:
        now = self._clock()
        if (better := self._balancer.better(now, idle=idle)) is not None:
            self.preferred = better
            return True
        if now - self._since > self._max_age:
            self._since = now
            self._resting = self._balancer.knows_load and self._may_change()
            return not self._resting
        return False
