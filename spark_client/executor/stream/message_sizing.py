"""The number of rows of one message, and the number of messages that may be unanswered."""

from collections.abc import Callable

from remote_udf.functions import Execution
from remote_udf.options import DEFAULT_CAPACITY

__all__ = ["MESSAGES_IN_FLIGHT", "MessageSizing"]

MESSAGES_IN_FLIGHT = 4
"""One message in flight has 60 % of the throughput of four; sixteen have little more."""
ROWS_SECONDS = 0.05
"""Seconds of work in one message to a row-wise function, once its pace is known. Results are then available
early, and the cost of a message is negligible."""
VECTORIZED_SECONDS = 1.0
"""The same for a vectorized function, which may be faster if it gets more rows per call."""
MESSAGE_BYTES = 4 << 20
ADAPT_SECONDS = 0.01
VECTORIZED_FIRST = 10_000
"""Rows of the first message to a vectorized function: the number of rows that Spark passes at a time."""
GROWTH = 4


class MessageSizing:
    """Sizes the messages of one stream by the pace of its answers.

    A message of a row-wise function has at least as many rows as may be in flight on the server, so
    that four of them keep it busy. If rows are cheap, it has more. Only unanswered rows count:
    with ordered output, rows after a slow row are processed while the engine has room for their outcomes.
    """

    def __init__(self, execution: Execution, capacity: int | None, batch_rows: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._most = batch_rows
        self._seconds = VECTORIZED_SECONDS if execution.by_batch else ROWS_SECONDS
        self._least = min(batch_rows, 1 if execution.by_batch else capacity or DEFAULT_CAPACITY)
        self.rows = min(batch_rows, VECTORIZED_FIRST) if execution.by_batch else self._least
        """Number of rows that the next message should have."""
        self._answered = 0
        self._since = clock()

    def has_room(self, unanswered_rows: int, unanswered_bytes: int) -> bool:
        """Whether another message may be sent."""
        full = unanswered_rows >= self.rows * MESSAGES_IN_FLIGHT
        return not unanswered_rows or not (full or unanswered_bytes >= MESSAGE_BYTES * MESSAGES_IN_FLIGHT)

    def next_rows(self, available: int, bytes_per_row: float) -> int:
        """Rows of the next message, at least one."""
        by_bytes = int(min(MESSAGE_BYTES / bytes_per_row, available)) if bytes_per_row else available
        return max(1, min(available, self.rows, by_bytes))

    def answered(self, rows: int) -> None:
        """Adapt to the pace. Call when results for this many rows were received."""
        self._answered += rows
        elapsed = self._clock() - self._since
        if elapsed < ADAPT_SECONDS and self._answered < self.rows:
            return
        wanted = self._answered / max(elapsed, 1e-6) * self._seconds
        self.rows = int(min(max(min(wanted, self.rows * GROWTH), self._least), self._most))
        self._answered, self._since = 0, self._clock()
