"""Account is what this process may take of one limit: a share, for which it asks the ledger of the limit."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from udf_server.limits.sharing.claims import Grant, LedgerAnswer, LimitClaim, checked_grant
from udf_server.limits.sharing.ledger import LEASE_SECONDS

__all__ = ["AWAY_SECONDS", "BUSY_SECONDS", "FORGOTTEN", "Account"]

AWAY_SECONDS = LEASE_SECONDS / 2
"""If no claim was answered for this time, the limit is not coordinated. Leases end later than that."""
BUSY_SECONDS, IDLE_SECONDS = 0.05, 1.5
"""Longest time between two claims, while calls run or wait, and otherwise."""
ASK_SECONDS = (0.01, 0.1)
"""Time between two claims while calls wait for what the ledger does not have: it doubles."""
FORGOTTEN = 1e-6
"""If a process spends a smaller share of a limit, it asks for nothing ahead."""


class Account(ABC):
    """What guards and budgets have in common. A Coordinator sends the claims, if the ledger is not in this process.

    An account has its own lock, which is held for short operations. Code that needs several locks takes them in one
    order: that of a function's limiter, then those of budgets by their `order`.
    """

    kind: str
    """What it is in a log line: `guard` or `budget`."""
    lasts = False
    """Whether what was spent is kept after the last claim."""

    def __init__(
        self, name: str, label: str, settings: str, lock: threading.Lock, clock: Callable[[], float], *,
        limit: str, fail_open: bool, opening: str,
    ) -> None:  # fmt: skip
        """Create the account of the limit `name`, which people call `label`. All processes must have the same settings.

        Messages say `limit` for it, and name the setting `opening`, which sets `fail_open`.

        If claims are not answered for some time, calls wait or fail, or with `fail_open` the account is on a ledger in
        this process meanwhile.
        """
        self.name, self.label, self.settings = name, label, settings
        self.call_back: Callable[[], None] = lambda: None
        """Set by the coordinator. Call it, from any thread, if a claim is due at once."""
        self._lock, self._clock = lock, clock
        self._limit, self._fail_open, self._opening = limit, fail_open, opening
        self._epoch, self._number = "", 0
        """Which data of the ledger was seen last, and the number of the last claim."""
        self._sent, self._answered = float("-inf"), clock()
        """When the last claim was sent, and when the last one that was answered."""
        self._why = ""
        """Why the last claim failed; empty if it did not."""
        self._ask_again, self._ask_most = ASK_SECONDS

    @property
    def away(self) -> bool:
        """Whether the limit is not coordinated."""
        return bool(self._why) and self._clock() - self._answered > AWAY_SECONDS

    @property
    def unavailable(self) -> str:
        """Why no call may begin, although there may be something for it; empty otherwise."""
        if self._fail_open or not self.away:
            return ""
        return (
            f"{self._limit} is not coordinated: {self._why}; calls go on when it answers, or at once with the setting "
            f"{self._opening}"
        )

    @property
    def is_alone(self) -> bool:
        """Whether the account is on a ledger in this process because its own does not answer."""
        return bool(self._why) and self._fail_open and self.away

    def due(self) -> float:
        """Seconds until the next claim."""
        with self._lock:
            waits, busy = self._needs()
            if waits:
                wait, self._ask_again = self._ask_again, min(self._ask_again * 2, self._ask_most)
                return wait
            self._ask_again = ASK_SECONDS[0]
            return self._sent + (BUSY_SECONDS if busy else IDLE_SECONDS) - self._clock()

    def claim(self, *, leave: bool = False) -> LimitClaim:
        """The claim for what the calls of this process need. To leave, it needs nothing, and returns what it has."""
        with self._lock:
            return self._next_claim(leave)

    def granted(self, grant: LedgerAnswer) -> None:
        """Take the grant for the last claim. Raises CoordinationFailed, before it takes anything, if it is none."""
        with self._lock:
            self._granted(grant)
        self.changed()

    def failed(self, why: str) -> None:
        """Note that the last claim was not answered, or was refused."""
        with self._lock:
            self._why = why
            self._lost()
        self.changed()

    @abstractmethod
    def changed(self) -> None:
        """Let calls look again that wait: there may be more for them, or nothing for long. Called without the lock."""

    # What follows is called with the lock held.

    def _next_claim(self, leave: bool = False) -> LimitClaim:
        now = self._clock()
        self._number += 1
        claim: LimitClaim = {
            "settings": self.settings, "epoch": self._epoch, "number": self._number, "leave": leave,
            "lasts": self.lasts, "most": -1, "ceiling": 0, "wanted": 0, "spare": 0, "rates": [], "pause": 0.0,
            "units": {}, "rows": 0, "failed": 0,
            **self._claim(leave, now),
        }  # fmt: skip
        self._sent = now
        return claim

    def _granted(self, answer: LedgerAnswer) -> None:
        if "stale" in answer:
            # It has arrived twice. The first one was granted, and what that grant had is not known here.
            self._answered, self._why = self._sent, ""
            self._arrived()
            return
        grant = checked_grant(answer, *self._expected())
        epoch, self._epoch = self._epoch, grant.epoch
        self._answered, self._why = self._sent, ""
        if self._take_grant(grant, self._clock(), lost=epoch != grant.epoch):
            self._ask_again = ASK_SECONDS[0]

    @abstractmethod
    def _needs(self) -> tuple[bool, bool]:
        """Whether calls wait for what the ledger has not granted, and whether there is anything else to tell soon."""

    @abstractmethod
    def _claim(self, leave: bool, now: float) -> LimitClaim:
        """The parts of a claim that this account has."""

    @abstractmethod
    def _expected(self) -> tuple[int, Iterable[float], Iterable[str]]:
        """Of a grant: the most places, the amounts of rates and the units of a budget."""

    @abstractmethod
    def _take_grant(self, grant: Grant, now: float, *, lost: bool) -> bool:
        """Take what was granted. Returns whether calls got more. `lost`: the ledger has not the data that it had."""

    def _arrived(self) -> None:  # noqa: B027 - sums need nothing: the next claim has them all
        """Note that the last claim has arrived, although its grant is not known."""

    def _lost(self) -> None:  # noqa: B027
        """Note that the last claim has perhaps not arrived."""
