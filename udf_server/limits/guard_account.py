"""GuardAccount is what this process may take of the limit of one function: places, and units of rates."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from udf_server.limits.lease import Lease
from udf_server.limits.settings import GuardSettings, WithoutCoordination
from udf_server.limits.sharing.account import BUSY_SECONDS, Account
from udf_server.limits.sharing.claims import Grant, LimitClaim
from udf_server.limits.sharing.ledger import LEASE_SECONDS
from udf_server.limits.sharing.window import LOCAL_SLOTS, Window

__all__ = ["Demand", "GuardAccount"]

_EVER = float("inf")


class Demand(NamedTuple):
    """What the calls of a guard need."""

    in_use: int
    """Number of calls that run."""
    waiting: int
    """Number of calls that wait and that the adaptive limit would let begin."""
    costs: Sequence[float]
    """What the first waiting call takes of each rate; empty if none waits."""


class GuardAccount(Account):
    """If processes share the limit, each rate is a Lease, otherwise the Window itself, which answers at once.

    The limiter calls the methods with its lock held, which is that of the account.
    """

    kind = "guard"

    def __init__(
        self, name: str, settings: GuardSettings, lock: threading.Lock, demand: Callable[[], Demand],
        changed: Callable[[], None], clock: Callable[[], float], *, shared: bool = False,
    ) -> None:  # fmt: skip
        """Create the account of the guard `name`: function and version.

        Args:
            name: Function and version.
            settings: The settings of the guard.
            lock: The lock of the limiter.
            demand: What the calls of this process need. It is called with the lock held.
            changed: Called without the lock when calls that wait may be able to begin.
            clock: A monotonic clock.
            shared: Whether a Coordinator asks a ledger for shares. Before that nothing is allowed.
        """
        fail_open = settings.without_coordination is WithoutCoordination.FAIL_OPEN
        super().__init__(
            name, name, str(settings), lock, clock, limit=f"function {name}: its guard", fail_open=fail_open,
            opening="without-coordination = 'fail-open' of the guard",
        )  # fmt: skip
        self._demand, self._on_change = demand, changed
        self._rates: Sequence[Lease | Window] = [
            Lease(rate) if shared else Window(rate.amount, rate.seconds, rate.burst, LOCAL_SLOTS)
            for rate in settings.rate
        ]
        self._positions = range(len(settings.rate))
        """The positions of the rates. A loop over them costs a fraction of one over a strict zip."""
        self._most = -1 if settings.max_concurrency is None else settings.max_concurrency
        self._leases_places = shared and self._most >= 0
        self._places: float = 0 if self._leases_places else _EVER if self._most < 0 else self._most
        self._until = _EVER
        """When the lease of the places ends. Then the ledger gives them to others, although no claim has failed."""
        self._alone: GuardAccount | None = None
        """The account on a ledger in this process, for `fail-open`."""
        if shared and fail_open:
            self._alone = GuardAccount(name, settings, lock, demand, changed, clock)
        if shared and settings.rate:
            # Claims that are further apart than a burst lasts would leave a part of the rate unused.
            bursts = (rate.burst * rate.seconds / rate.amount for rate in settings.rate if rate.burst is not None)
            self._ask_most = min(max(min(bursts, default=1.0) / 4, 0.01), BUSY_SECONDS)
        self._resume = self._pause_until = 0.0
        """Until when the service has asked for a pause, and until when the next claim is to say so."""
        self._claimed_pause = 0.0
        self._peak = 0
        """The most calls that ran at once since the last claim."""

    @property
    def places(self) -> float:
        """Number of calls that may run at once."""
        if self._alone is not None and self.is_alone:
            return self._alone.places
        return self._places if self._clock() < self._until else 0

    @property
    def source(self) -> "GuardAccount":
        """The account that calls take from now: this one, or the one that replaces it.

        Call `begin` and `settle` on the account that a call has taken from, also if another one replaces it meanwhile.
        """
        return self._alone if self._alone is not None and self.is_alone else self

    def take_at_once(self, costs: Sequence[float], in_use: int, now: float) -> bool:
        """Take units for a call that begins `now`, while `in_use` calls run and none waits.

        Every call asks this first, so it must be cheap. If it returns False, it has taken nothing, and the caller asks
        for `places` and `wait`, which may still allow the call.
        """
        if in_use >= self._places or now >= self._until or now < self._resume or self._why:
            return False
        for index in self._positions:
            if not self._rates[index].take_at_once(costs[index], now):
                for taken in range(index):
                    self._rates[taken].put_back(costs[taken], now)
                return False
        return True

    def wait(self, costs: Sequence[float], now: float) -> float:
        """Seconds until the units for a call are there: 0.0 if they are, infinity if calls are told when to look."""
        if now < self._resume and self._rates:
            return self._resume - now
        wait = 0.0
        for rate, cost in zip(self._rates, costs, strict=True):
            wait = max(wait, rate.wait(cost, now))
        return wait

    def take(self, costs: Sequence[float], now: float) -> None:
        """Take units for a call for which there is no `wait`. Call `begin` when it begins."""
        for rate, cost in zip(self._rates, costs, strict=True):
            rate.take(cost, now)

    def begin(self, costs: Sequence[float], taken: float, now: float) -> None:
        """Note that a call begins which has taken these units at the time `taken`."""
        for rate, cost in zip(self._rates, costs, strict=True):
            rate.begin(cost, taken, now)

    def settle(self, amounts: Sequence[float], began: float, now: float) -> None:
        """Add what a call has spent beyond what it took of each rate, or, if negative, give back.

        `began` is a time shortly before `begin` was called for that call.
        """
        for rate, amount in zip(self._rates, amounts, strict=True):
            rate.settle(amount, began, now)

    def pause(self, seconds: float) -> None:
        """Take nothing of the rates for this time, because the service asks for it."""
        if self._alone is not None:
            self._alone.pause(seconds)
        until = self._clock() + seconds
        self._pause_until, self._resume = max(self._pause_until, until), max(self._resume, until)
        self.call_back()

    def left(self, in_use: int) -> None:
        """Note that a call ends, while `in_use` calls were running."""
        self._peak = max(self._peak, in_use)

    def changed(self) -> None:
        self._on_change()

    def _leases(self) -> Iterable[Lease]:
        return (rate for rate in self._rates if isinstance(rate, Lease))

    def _needs(self) -> tuple[bool, bool]:
        demand = self._demand()
        holds = self._leases_places and self._places > 0
        return demand.waiting > 0, demand.in_use > 0 or holds or any(lease.is_busy for lease in self._leases())

    def _claim(self, leave: bool, now: float) -> LimitClaim:
        self._lost()  # if the coordinator was closed before the last claim was answered
        demand = self._demand()
        wanted = demand.in_use + demand.waiting
        spare = max(max(self._peak, demand.in_use) - wanted, 0)
        if leave:
            wanted, spare, demand = 0, 0, Demand(demand.in_use, 0, ())
            for lease in self._leases():
                lease.give_up()
        elapsed = max(now - self._sent, 0.001)
        costs = demand.costs or [0.0] * len(self._rates)
        ahead = 0.0 if leave else 2 * BUSY_SECONDS
        self._claimed_pause, self._pause_until = max(self._pause_until - now, 0.0), 0.0
        self._peak = demand.in_use
        return {
            "most": self._most, "wanted": wanted, "spare": spare, "pause": self._claimed_pause,
            "ceiling": max(int(self._places), demand.in_use) if self._leases_places else 0,
            "rates": [
                lease.claim(self._number, cost, demand.waiting, now, elapsed, ahead)
                for lease, cost in zip(self._leases(), costs, strict=True)
            ],
        }  # fmt: skip

    def _expected(self) -> tuple[int, Iterable[float], Iterable[str]]:
        return self._most, (rate.amount for rate in self._rates), ()

    def _take_grant(self, grant: Grant, now: float, *, lost: bool) -> bool:
        self._claimed_pause = 0.0
        more = grant.places > self._places
        if self._leases_places:
            self._places, self._until = grant.places, self._answered + LEASE_SECONDS
        for lease, granted in zip(self._leases(), grant.rates, strict=True):
            if lost:
                lease.forget()
            lease.granted(granted, grant.now, self._sent, now)
        self._resume = max(self._resume, now + grant.paused) if grant.paused else self._resume
        return more

    def _arrived(self) -> None:
        self._claimed_pause = 0.0
        self._until = self._answered + LEASE_SECONDS if self._leases_places else _EVER
        for lease in self._leases():
            lease.arrived()

    def _lost(self) -> None:
        """Report the pause of a claim that was lost once more, with the next claim.

        Units that the lost claim gave back are not given back again, because the claim may have arrived. Units that it
        spent have its number (see `Lease`), so they count once.
        """
        if self._claimed_pause:
            self._pause_until = max(self._pause_until, self._sent + self._claimed_pause)
            self._claimed_pause = 0.0
