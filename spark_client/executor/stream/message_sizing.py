"""How many rows go into one message, and how many messages may be unanswered."""

from collections.abc import Callable

from remote_udf.functions import Execution

__all__ = ["MESSAGES_UNDER_WAY", "MessageSizing"]

MESSAGES_UNDER_WAY = 4
"""One message in flight gives 60 % of what four give; sixteen give little more."""
ROWS_SECONDS = 0.05
"""Work that one message to a row-wise function holds, once its pace is known: little enough to see
results early, much enough not to notice what a message costs."""
VECTORIZED_SECONDS = 1.0
"""The same for a vectorized function, which may be the faster the more rows it gets at once."""
MESSAGE_BYTES = 4 << 20
ADAPT_SECONDS = 0.01
DEFAULT_CAPACITY = 100
VECTORIZED_FIRST = 10_000
"""Rows of the first message to a vectorized function: as many as Spark hands over at a time."""
GROWTH = 4


class MessageSizing:
    """Sizes messages of one stream by the pace of its answers.

    A message of a row-wise function holds at least as many rows as may be in flight on the server, so
    that four of them keep it busy, and more when rows are cheap. Only rows without an answer count:
    ordered output runs ahead of a slow row as far as the engine holds outcomes for it.
    """

    def __init__(self, execution: Execution, capacity: int | None, batch_rows: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._most = batch_rows
        vectorized = execution is Execution.VECTORIZED
        self._seconds = VECTORIZED_SECONDS if vectorized else ROWS_SECONDS
        self._least = min(batch_rows, 1 if vectorized else capacity or DEFAULT_CAPACITY)
        self.rows = min(batch_rows, VECTORIZED_FIRST) if vectorized else self._least
        """Rows the next message should have."""
        self._answered = 0
        self._since = clock()

    def has_room(self, unanswered_rows: int, unanswered_bytes: int) -> bool:
        """Whether another message may go."""
        full = unanswered_rows >= self.rows * MESSAGES_UNDER_WAY
        return not unanswered_rows or not (full or unanswered_bytes >= MESSAGE_BYTES * MESSAGES_UNDER_WAY)

    def next_rows(self, available: int, bytes_per_row: float) -> int:
        """Rows of the next message, at least one."""
        by_bytes = int(min(MESSAGE_BYTES / bytes_per_row, available)) if bytes_per_row else available
        return max(1, min(available, self.rows, by_bytes))

    def answered(self, rows: int) -> None:
        """Results for this many rows have come."""
        self._answered += rows
        elapsed = self._clock() - self._since
        if elapsed < ADAPT_SECONDS and self._answered < self.rows:
            return
        wanted = self._answered / max(elapsed, 1e-6) * self._seconds
        self.rows = int(min(max(min(wanted, self.rows * GROWTH), self._least), self._most))
        self._answered, self._since = 0, self._clock()
