"""Balancer finds a server that has less to do than the one of a stream: the better of two, now and then."""

import math
from collections.abc import Callable

from remote_udf.v1 import message_pb2 as pb
from spark_client.base.server_load import LOAD_MARGIN, ServerLoad
from spark_client.base.transport import Question, Transport

__all__ = ["Balancer"]

ASK_SECONDS = 30.0
"""Mean time between two questions of a stream."""
SOON_SECONDS = 5.0
"""Time in which a stream asks whose server has changed, or whose load has risen."""
WAIT_SECONDS = 0.1
"""How long a stream that has no rows in flight waits for answers."""
STALE_SECONDS = 5.0
"""Answers that a stream looks at later are not used, because other streams have moved since."""


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
