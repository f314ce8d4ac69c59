"""Lease is what this process has of one shared rate, and what the ledger does not know of its spending yet."""

import bisect
import math
from dataclasses import dataclass

from udf_server.limits.settings import RateLimit
from udf_server.limits.sharing.account import FORGOTTEN
from udf_server.limits.sharing.claims import RateClaim
from udf_server.limits.sharing.ledger import LEASE_SECONDS, ahead_seconds
from udf_server.limits.sharing.window import SLOTS

__all__ = ["Lease"]

ROUNDED = 1 - 1e-9
SLOWER = 0.8
"""The slowest answer counts this much less with each later one."""
MOST_CLAIMED = 10
"""Number of claims that were not answered whose amounts are kept apart."""
LONGEST_SECONDS = LEASE_SECONDS / 2
"""Longest time for which units are kept because answers are slow. Later the claim has failed."""


@dataclass(slots=True)
class _Share:
    """Units of one grant."""

    until: float
    """Until when calls may take them."""
    slot: int
    """A slot not after that in which the ledger counts them."""
    amount: float


class Lease:
    """The units of one rate. Times are those of the clock of this process, which need not be that of the ledger.

    The ledger counts units as if calls began with them `keep` seconds after it reads the claim; none begins later. A
    claim is read after it was sent, so calls may take them until `keep` seconds after that, less a margin in which the
    calls begin. A call that begins later is counted when it begins.
    """

    def __init__(self, rate: RateLimit) -> None:
        self._rate, self.amount = rate, rate.amount
        """The amount is what all members may spend in the time of the rate."""
        self._width = rate.seconds / SLOTS
        self._margin = self._width / 2
        self._shares: list[_Share] = []
        """In the order in which they end."""
        self._added, self._back = 0.0, dict[int, float]()
        """Since the last claim: what calls have spent beyond what they took and what units here have paid, and what is
        given back, by slot."""
        self._claimed: list[list[float]] = []
        """What claims have added that were not answered: pairs of the claim's number and the amount."""
        self._spent, self._recent = 0.0, 0.0
        self._slowest, self._keep = 0.0, self._width
        self._offset = 0.0
        """What is added to a time of this process to get one of the ledger, which is not later than the true one."""

    @property
    def is_busy(self) -> bool:
        """Whether it has units, or anything happened since the last claim."""
        return bool(self._shares or self._spent or self._added or self._back)

    def take_at_once(self, cost: float, now: float) -> bool:
        """Take units for a call if those that end first have more than enough. Otherwise ask for the `wait`."""
        shares = self._shares
        if not shares or shares[0].amount <= cost or shares[0].until < now:
            return False
        shares[0].amount -= cost
        self._spent += cost
        return True

    def put_back(self, cost: float, now: float) -> None:
        """Undo `take_at_once`."""
        self._shares[0].amount += cost
        self._spent -= cost

    def wait(self, cost: float, now: float) -> float:
        """0.0 if there are units for a call, otherwise infinity: calls are told when a grant has more."""
        if not cost:
            return 0.0
        self._drop(now)
        return 0.0 if self._left() >= cost * ROUNDED else math.inf

    def take(self, cost: float, now: float) -> None:
        """Take units for which there is no `wait`, from those that end first."""
        self._spent += cost
        self._spend(cost)

    def _pay(self) -> None:
        """Spend units that are here for what calls have spent beyond what they took."""
        paid = min(self._added, self._left())
        self._added -= paid
        self._spend(paid)

    def _spend(self, cost: float) -> None:
        while cost > 0 and self._shares:
            first = self._shares[0]
            if first.amount > cost:
                first.amount -= cost
                return
            cost -= first.amount
            del self._shares[0]

    def begin(self, cost: float, taken: float, now: float) -> None:
        """Count what was taken at the time `taken` for a call that begins now."""
        if cost and now > taken + self._margin:
            self._give_back(cost, self._slot(taken))
            self.settle(cost, now, now)

    def settle(self, amount: float, began: float, now: float) -> None:
        """Add what a call has spent beyond what it took, or, if negative, give it back.

        Units that this process has pay for the excess first: the ledger has counted them, and no other call must take
        them.
        """
        if amount > 0:
            self._added += amount
            self._drop(now)  # what has ended is not counted for as long as what is spent now
            self._pay()
        elif amount < 0:
            self._give_back(-amount, self._slot(began))

    def claim(self, number: int, cost: float, waiting: int, now: float, elapsed: float, ahead: float) -> RateClaim:
        """The part of the claim `number` for calls of which `waiting` wait and the first takes `cost`.

        `elapsed` is the time since the last claim. It asks ahead for what calls spend in `ahead` seconds.
        """
        self._drop(now)
        recent = max(self._spent / elapsed, self._recent / 2)
        # Otherwise a process that is idle would ask for less and less, and claim as often as a busy one.
        self._recent = recent if recent * self._rate.seconds > self._rate.amount * FORGOTTEN else 0.0
        kept, ahead = self._left(), self._recent * 2 * min(ahead, ahead_seconds(self._rate.seconds))
        # Units that arrive too late are not spent, so if answers are slow they are kept for longer.
        self._keep = max(min(self._slowest * 2, LONGEST_SECONDS) + self._margin, self._width)
        if self._added:
            self._claimed.append([number, self._added])
            if len(self._claimed) > MOST_CLAIMED:
                # If one of the two has arrived, it counts twice, which is safe.
                (_, older), (later, newer), *rest = self._claimed
                self._claimed = [[later, older + newer], *rest]
        claim: RateClaim = {
            "amount": self._rate.amount, "seconds": self._rate.seconds, "burst": self._rate.burst,
            "settled": list(self._claimed), "back": [list(each) for each in sorted(self._back.items())],
            "keep": self._keep,
            "take": max(cost * waiting - kept, 0.0), "least": max(cost - kept, 0.0), "ahead": max(ahead - kept, 0.0),
        }  # fmt: skip
        self._added, self._spent, self._back = 0.0, 0.0, {}
        return claim

    def arrived(self) -> None:
        """Note that the last claim has arrived."""
        self._claimed = []

    def granted(self, units: list[float], ledger_now: float, sent: float, now: float) -> None:
        """Take what the ledger has granted at its time `ledger_now` for the claim that was sent at `sent`."""
        self._slowest = max(now - sent, self._slowest * SLOWER)
        self._offset = ledger_now - now
        slot = math.floor(ledger_now / self._width)
        for amount, keep in zip(units, (self._keep, max(ahead_seconds(self._rate.seconds), self._keep)), strict=True):
            if amount > 0:
                share = _Share(sent + keep - self._margin, slot, amount)
                bisect.insort(self._shares, share, key=lambda each: each.until)
        self.arrived()
        self._drop(now)
        self._pay()

    def give_up(self) -> None:
        """Return all units with the next claim."""
        for share in self._shares:
            self._give_back(share.amount, share.slot)
        self._shares.clear()

    def forget(self) -> None:
        """Forget units of a ledger that was lost. They are not counted any more, so they must not be spent."""
        self._shares.clear()
        self._back.clear()

    def _left(self) -> float:
        return math.fsum(share.amount for share in self._shares)

    def _drop(self, now: float) -> None:
        """Give back what was not spent in its time."""
        while self._shares and now > self._shares[0].until:
            share = self._shares.pop(0)
            self._give_back(share.amount, share.slot)

    def _give_back(self, amount: float, slot: int) -> None:
        self._back[slot] = self._back.get(slot, 0.0) + amount

    def _slot(self, when: float) -> int:
        return math.floor((when + self._offset) / self._width)
