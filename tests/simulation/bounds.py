"""Bounds looks at what servers with small limits hold, after each iteration of a loop."""

from typing import Any

from tests.simulation.oracles import Violation

__all__ = ["Bounds"]

RESULT_BYTES = 8_000
"""A result of these worlds is smaller, and so is the traceback of an error."""
FEW_MESSAGES = 4
"""Messages of a stream that are no results: Opened, Progress, Finished."""


class Bounds:
    """The largest sizes so far, of the servers of one world, and the shares of callers that wait for one function."""

    def __init__(self, limits: Any, rows: Any, capacity: int) -> None:
        """`capacity` is the largest `buffer-capacity`."""
        self._limits, self._rows, self._capacity = limits, rows, capacity
        self._message_bytes = self._message_rows = 0
        """Of the largest message so far: one alone may exceed the limits of all streams."""
        self._shares: dict[Any, tuple[tuple[int, ...], dict[int, int]]] = {}
        """A function's turns to the tasks that wait for them, and what each had been served when they began to."""

    def received(self, message: bytes | None) -> None:
        """Note a message of a client."""
        self._message_bytes = max(self._message_bytes, len(message or b""))

    def look(self, server: Any) -> None:
        """After an iteration of the server's own loop. Raises Violation."""
        limits, admission = self._limits, server.admission
        streams = list(server.service._open)
        results = limits.streams.result_bytes + (self._capacity + 1) * RESULT_BYTES
        most = self._bytes(limits.admission.server_bytes) + len(streams) * results
        self._check(server, "bytes", admission.bytes, most)
        for stream in streams:
            if (accounts := stream._accounts) is None:
                continue
            self._message_rows = max((self._message_rows, *(pending.rows for pending in accounts._pending.values())))
            rows = limits.streams.unanswered_rows
            self._check(server, "rows of a stream", accounts.unanswered_rows, rows)
            most = self._bytes(limits.streams.unanswered_bytes)
            self._check(server, "bytes of a stream", accounts._unanswered_bytes, most)
            self._check(server, "bytes of results of a stream", stream._room.held, results)
            self._check(server, "messages of a stream", stream._outbox._queue.qsize(), rows + FEW_MESSAGES)

        for function, rows in admission._rows.items():
            self._check(server, f"rows of {function}", rows, max(limits.admission.function_rows, self._message_rows))

    def look_at_turns(self, server: Any) -> None:
        """After an iteration of a function's loop: callers that wait get equal shares. Raises Violation."""
        for hosted in server.host.hosted():
            executor = hosted.running_executor
            if executor is None:
                continue
            turns = executor.turns
            self._check(server, "turns that wait", turns.waiting, server.service.streams * self._capacity)
            waiting = tuple(sorted(_task(node.key) for node in turns._queue._root.children.values() if node.waiting))
            served = {task: self._rows.served[server.process, task] for task in waiting}
            before, base = self._shares.get(turns, ((), {}))
            if waiting != before:
                self._shares[turns] = waiting, served
                continue
            shares = [served[task] - base[task] for task in waiting]
            if len(set(waiting)) < len(waiting):
                continue  # two attempts at a task, whose rows are not told apart
            if shares and max(shares) - min(shares) > 2 * self._limits.calls + 4:
                raise Violation(f"{server.process.name}: callers {waiting} that waited were served {shares} rows")

    def _bytes(self, limit: int) -> int:
        """A message larger than a limit is admitted alone."""
        return max(limit, self._message_bytes)

    def _check(self, server: Any, what: str, found: int, most: int) -> None:
        if found > most:
            raise Violation(f"{server.process.name} holds {found} {what}; its options allow {most}")


def _task(caller: str) -> int:
    """The task of a caller, which is known by its address: see `SimulatedServer`."""
    return int(caller.split("task")[1].split(".", maxsplit=1)[0])
