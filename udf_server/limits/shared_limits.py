"""SharedLimits are those of all processes that share a ledger. What they lease, calls take without asking."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from udf_server.limits.leased_tokens import LeasedTokens
from udf_server.limits.local_limits import Demand, Limits, LocalLimits
from udf_server.limits.settings import GuardSettings, WithoutCoordination
from udf_server.limits.sharing.grants import guard_grant
from udf_server.limits.sharing.ledger import LEASE_SECONDS

__all__ = ["SharedLimits"]

AWAY_SECONDS = LEASE_SECONDS / 2
"""If no claim was answered for this time, the limits are not coordinated. Leases end later than that."""
BUSY_SECONDS, IDLE_SECONDS = 0.1, 1.5
"""Longest time between two claims, while calls run or wait, and otherwise."""
ASK_SECONDS = (0.01, 0.1)
"""Time between two claims while calls wait for what the ledger does not have: it doubles."""
_NEVER = float("-inf")


class SharedLimits(Limits):
    """The part of shared limits that this process has leased. The coordinator calls what `Sharing` has."""

    def __init__(
        self,
        name: str,
        settings: GuardSettings,
        lock: threading.Lock,
        demand: Callable[[], Demand],
        changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """Create the limits of the guard `name`.

        Args:
            name: Function and version.
            settings: The settings, which must be the same in all processes.
            lock: The lock of the guard.
            demand: What the calls of this process need. It is called with the lock held.
            changed: Called with the lock held when calls that wait may be able to begin.
            clock: A monotonic clock.
        """
        self.name = self.label = name
        self.kind, self.settings = "guard", str(settings)
        self.call_back: Callable[[], None] = lambda: None
        self._lock, self._demand, self._changed, self._clock = lock, demand, changed, clock
        self._tokens = [LeasedTokens(rate) for rate in settings.rate]
        self._rates = range(len(settings.rate))
        """The positions of the rates. A loop over them costs a fraction of one over a strict zip."""
        self._most = -1 if settings.max_concurrency is None else settings.max_concurrency
        self._alone = LocalLimits(settings, clock)
        """The limits of this process alone, for `fail-open`."""
        self._open = settings.without_coordination is WithoutCoordination.FAIL_OPEN
        self._epoch = ""
        self._permits = 0
        self._turn = 0
        """The number of the last claim."""
        self._sent = _NEVER
        self._answered = _NEVER
        """When the last claim that was answered was sent."""
        self._why = ""
        """Why the last claim failed; empty if it did not."""
        self._denied = ASK_SECONDS[0]
        self._claimed: dict[str, Any] = {}
        """The last claim, until it is answered."""
        self._resume, self._pause_until = 0.0, 0.0
        self._peak = 0
        """The most calls that ran at once since the last claim."""

    @property
    def away(self) -> bool:
        """Whether the limits are not coordinated."""
        return bool(self._why) and self._clock() - self._answered > AWAY_SECONDS

    @property
    def unavailable(self) -> str:
        return self._why if self._why and not self._open and self.away else ""

    @property
    def _is_alone(self) -> bool:
        return bool(self._why) and self._open and self.away

    @property
    def places(self) -> float:
        if self._is_alone:
            return self._alone.places
        if self._most < 0:
            return float("inf")
        # When the lease has ended the ledger gives the permits to others, even if no claim has failed meanwhile.
        return self._permits if self._clock() - self._answered < LEASE_SECONDS else 0

    @property
    def _leases(self) -> bool:
        return self._permits > 0 or any(tokens.held for tokens in self._tokens)

    @property
    def source(self) -> Limits:
        return self._alone if self._is_alone else self

    def take_at_once(self, costs: Sequence[float], in_use: int, now: float) -> bool:
        if self._why or now < self._resume:
            return False
        if self._most >= 0 and (in_use >= self._permits or now - self._answered >= LEASE_SECONDS):
            return False
        for index in self._rates:
            if not self._tokens[index].take_at_once(costs[index], now):
                for taken in range(index):
                    self._tokens[taken].put_back(costs[taken])
                return False
        return True

    def take(self, costs: Sequence[float]) -> float:
        if not self._tokens:
            return 0.0
        now = self._clock()
        if now < self._resume:
            return self._resume - now
        if not all(tokens.fits(cost, now) for tokens, cost in zip(self._tokens, costs, strict=True)):
            return float("inf")
        for tokens, cost in zip(self._tokens, costs, strict=True):
            tokens.take(cost)
        return 0.0

    def begin(self, costs: Sequence[float], taken: float) -> None:
        now = self._clock()
        for tokens, cost in zip(self._tokens, costs, strict=True):
            tokens.begin(cost, taken, now)

    def settle(self, amounts: Sequence[float], began: float) -> None:
        now = self._clock()
        for tokens, amount in zip(self._tokens, amounts, strict=True):
            tokens.settle(amount, began, now)

    def pause(self, seconds: float) -> None:
        self._alone.pause(seconds)
        until = self._clock() + seconds
        self._pause_until, self._resume = max(self._pause_until, until), max(self._resume, until)
        self.call_back()

    def left(self, in_use: int) -> None:
        self._peak = max(self._peak, in_use)

    def starved(self) -> None:
        self.call_back()

    def due(self) -> float:
        """Seconds until the next claim."""
        with self._lock:
            demand, now = self._demand(), self._clock()
            if demand.waiting:
                wait = self._denied
                self._denied = min(self._denied * 2, ASK_SECONDS[1])
                return wait
            self._denied = ASK_SECONDS[0]
            if demand.in_use or any(tokens.changed for tokens in self._tokens):
                return self._sent + (BUSY_SECONDS / 2 if self._tokens else BUSY_SECONDS) - now
            return self._sent + (BUSY_SECONDS if self._leases else IDLE_SECONDS) - now

    def claim(self, *, leave: bool = False) -> dict[str, Any]:
        """The claim for what the calls of this process need. To leave, it needs nothing, and returns what it has."""
        with self._lock:
            if self._claimed:
                # The coordinator was closed before the last claim was answered.
                self._claim_again(self._claimed)
            demand, now = self._demand(), self._clock()
            elapsed = max(now - self._sent, 0.001)
            peak = max(self._peak, demand.in_use)
            wanted = demand.in_use + demand.waiting
            spare = peak - wanted
            if leave:
                wanted, spare, demand = 0, 0, Demand(demand.in_use, 0, ())
                for tokens in self._tokens:
                    tokens.give_up()
            self._turn += 1
            costs = demand.costs or [0.0] * len(self._tokens)
            rates = [
                tokens.claim(self._turn, cost, demand.waiting, now, elapsed, 0.0 if leave else BUSY_SECONDS)
                for tokens, cost in zip(self._tokens, costs, strict=True)
            ]
            claim = {
                "settings": self.settings, "epoch": self._epoch, "turn": self._turn,
                "most": self._most, "ceiling": max(self._permits, demand.in_use), "wanted": wanted,
                "spare": max(spare, 0), "rates": rates, "pause": max(self._pause_until - now, 0.0),
            }  # fmt: skip
            self._sent, self._claimed = now, claim
            self._peak, self._pause_until = demand.in_use, 0.0
            return claim

    def granted(self, grant: dict[str, Any]) -> None:
        """Take the grant for the last claim. Raises CoordinationFailed if it is none."""
        if "stale" in grant:
            # It has arrived twice. The first one was granted, and what that grant had is not known here.
            with self._lock:
                self._answered, self._why, self._claimed = self._sent, "", {}
                for tokens in self._tokens:
                    tokens.arrived()
            return
        taken = guard_grant(grant, self._most, (tokens.amount for tokens in self._tokens))
        with self._lock:
            now = self._clock()
            if taken.epoch != self._epoch:
                for tokens in self._tokens:
                    tokens.forget()
            self._answered, self._why, self._epoch, self._claimed = self._sent, "", taken.epoch, {}
            if taken.permits > self._permits:
                self._denied = ASK_SECONDS[0]
            self._permits = taken.permits
            for tokens, granted in zip(self._tokens, taken.tokens, strict=True):
                tokens.granted(granted, taken.now, self._sent, now)
            self._resume = max(self._resume, now + taken.paused) if taken.paused else self._resume
            self._changed()

    def failed(self, why: str) -> None:
        """Note that the last claim was not answered, or was refused."""
        with self._lock:
            self._why = why
            if self._claimed:
                self._claim_again(self._claimed)
            self._claimed = {}
            self._changed()

    def _claim_again(self, lost: dict[str, Any]) -> None:
        """Add the pause that a claim has reported which was lost to the next one.

        What was given back must not be, in case it has arrived. What was spent says of which claim it is
        (`LeasedTokens`), so it counts once.
        """
        if lost["pause"]:
            self._pause_until = max(self._pause_until, self._sent + lost["pause"])
