"""Connector: opens connections until one is taken, with rests in between, up to a deadline."""

import random
from collections.abc import Callable

from remote_udf.errors import StreamError
from remote_udf.tracing import Span
from spark_client.calls import ScalarCall
from spark_client.errors import ServerUnavailable
from spark_client.executor.connection import Connection
from spark_client.executor.transport import TransportLost

__all__ = ["BACKOFF_SECONDS", "Connector", "backoff"]

BACKOFF_SECONDS = (0.05, 2.0)
"""First and longest wait between attempts to reach a server."""


class Connector:
    """The way of one stream to its servers. One thread connects; any may close."""

    def __init__(
        self,
        call: ScalarCall,
        new: Callable[[], Connection],
        clock: Callable[[], float],
        sleep: Callable[[float], object],
        span: Span,
    ) -> None:
        """`new` asks a server for a stream, each time the next one; `sleep` is one that the end interrupts."""
        self._call = call
        self._new = new
        self._clock = clock
        self._sleep = sleep
        self._span = span
        self._closed = False
        self._opening: Connection | None = None
        """The connection that is being made."""

    def close(self) -> None:
        """Gives up what is being made; nothing is made any more. Safe to call twice."""
        self._closed = True
        if (opening := self._opening) is not None:
            opening.close(cancel=True)

    def connect(self, deadline: float, open_seconds: float) -> Connection:
        """Opens a stream; the server may take so many seconds to say yes.

        Raises ServerUnavailable after the deadline or close, StreamError if refused for good.
        """
        function, target = self._call.spec.key, self._call.config.target
        attempts = 0
        while not self._closed:
            hint = 0.0
            try:
                return self._open(open_seconds)
            except TransportLost as lost:
                problem: Exception = lost
                why = f"no server at {target}: {lost}"
            except StreamError as error:
                if not error.retryable:
                    raise
                problem, hint = error, error.retry_after or 0.0
                why = f"the server at {target} does not take the stream: {error}"
            pause = max(backoff(attempts), hint)
            attempts += 1
            self._span.event("connect failed", attempt=attempts, error=type(problem).__name__, pause=pause)
            if self._clock() + pause > deadline:
                raise ServerUnavailable(f"function {function}: {why}") from problem
            self._sleep(pause)
        raise ServerUnavailable(f"function {function}: the stream was closed")

    def _open(self, seconds: float) -> Connection:
        connection = self._opening = self._new()
        try:
            if self._closed:  # before it could know of this connection
                connection.close(cancel=True)
            connection.open(seconds)
            return connection
        except TransportLost:
            connection.distrust()
            raise
        except StreamError as error:
            if error.retryable:
                connection.distrust(error.retry_after or 0.0)
            raise
        finally:
            self._opening = None


def backoff(attempts: int) -> float:
    """Seconds to wait after so many attempts; with jitter, so that the tasks of a job do not come back all at once."""
    first, longest = BACKOFF_SECONDS
    return min(first * 2.0 ** min(attempts, 16), longest) * random.uniform(0.5, 1.0)
