"""Moves decides when a stream changes its server, and that no rows are in flight when it does."""

from collections.abc import Callable

from remote_udf.v1 import message_pb2 as pb
from spark_client.base.transport import Transport
from spark_client.executor.stream.balancing import Balancer
from spark_client.executor.stream.connection import Connection

__all__ = ["Moves"]


class Moves:
    """A stream changes its server if that drains, if another has less to do, or if the connection is old.

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
