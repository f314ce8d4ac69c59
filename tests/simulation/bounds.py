"""Bounds looks at what servers with small limits hold, after each iteration of a loop."""

from typing import Any

from tests.simulation.oracles import Violation
from udf_server.runners.room import OWNERS_PART

__all__ = ["Bounds"]

RESULT_BYTES = 8_000
"""A result of these worlds is smaller, and so is the traceback of an error."""
FEW_MESSAGES = 4
"""Messages of a stream that are no results: Opened, Progress, Finished."""


class Bounds:
    """The largest sizes so far, of the servers of one world, and the shares of those that wait for one function."""

    def __init__(self, limits: Any, capacity: int) -> None:
        """`capacity` is the largest `buffer-capacity`."""
        self._limits, self._capacity = limits, capacity
        self._message_bytes = self._message_rows = 0
        """Of the largest message so far: one alone may exceed the limits of all streams."""

    def received(self, message: bytes | None) -> None:
        """Note a message of a client."""
        self._message_bytes = max(self._message_bytes, len(message or b""))

    def look(self, server: Any) -> None:
        """After an iteration of the server's own loop. Raises Violation."""
        limits, admission = self._limits, server.admission
        streams = list(server.service._open)
        results = limits.streams.result_bytes + (self._capacity + 1) * RESULT_BYTES
        # Beyond the limit each caller may hold its part, and one message.
        beyond = len(admission.rooms._owned) * (limits.admission.server_bytes // OWNERS_PART + self._message_bytes)
        most = self._bytes(limits.admission.server_bytes) + beyond + len(streams) * results
        self._check(server, "bytes", admission.bytes, most)
        for stream in streams:
            if (call := stream.call) is None:
                continue
            accounts = call.accounts
            self._message_rows = max((self._message_rows, *(pending.rows for pending in accounts._pending.values())))
            rows = limits.streams.unanswered_rows
            self._check(server, "rows of a stream", accounts.unanswered_rows, rows)
            most = self._bytes(limits.streams.unanswered_bytes)
            self._check(server, "bytes of a stream", accounts._unanswered_bytes, most)
            self._check(server, "bytes of results of a stream", call.room.held, results)
            self._check(server, "messages of a stream", stream._outbox._queue.qsize(), rows + FEW_MESSAGES)

        for function, rows in admission._rows.items():
            self._check(server, f"rows of {function}", rows, max(limits.admission.function_rows, self._message_rows))

    def look_at_turns(self, server: Any) -> None:
        """After an iteration of a function's loop: those that wait get equal shares. Raises Violation."""
        for hosted in server.host.hosted():
            executor = hosted.running_executor
            if executor is None:
                continue
            turns = executor.turns
            self._check(server, "turns that wait", turns.waiting, server.service.streams * self._capacity)
            server.shares.look(turns._queue, 2 * self._limits.calls + 4, server.process.name)

    def _bytes(self, limit: int) -> int:
        """A message larger than a limit is admitted alone."""
        return max(limit, self._message_bytes)

    def _check(self, server: Any, what: str, found: int, most: int) -> None:
        if found > most:
            raise Violation(f"{server.process.name} holds {found} {what}; its options allow {most}")
