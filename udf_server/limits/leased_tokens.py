"""LeasedTokens are what this process has of one shared rate, and what the ledger does not know of its spending yet."""

import bisect
import math
from dataclasses import dataclass
from typing import Any

from udf_server.limits.rates import RateLimit
from udf_server.limits.sharing.ledger import LEASE_SECONDS, SLOTS, ahead_seconds

__all__ = ["LeasedTokens"]

ROUNDED = 1 - 1e-9
FORGOTTEN = 1e-6
"""If a process spends a smaller share of a rate, it asks for nothing ahead."""
SLOWER = 0.8
"""The slowest answer counts this much less with each later one."""
MOST_CLAIMED = 10
"""Number of claims that were not answered whose amounts are kept apart."""
LONGEST_SECONDS = LEASE_SECONDS / 2
"""Longest time for which tokens are kept because answers are slow. Later the claim has failed."""


@dataclass(slots=True)
class _Lot:
    """Tokens of one grant."""

    until: float
    """Until when calls may take them."""
    slot: int
    """A slot not after that in which the ledger counts them."""
    amount: float


class LeasedTokens:
    """The tokens of one rate. Times are those of the clock of this process, which need not be that of the ledger.

    The ledger counts tokens as if they were spent `keep` seconds after it reads the claim; they are not spent later. A
    claim is read after it was sent, so calls may take them until `keep` seconds after that, less a margin in which the
    calls begin. A call that begins later is counted when it begins.
    """

    def __init__(self, rate: RateLimit) -> None:
        self._rate = rate
        self._width = rate.seconds / SLOTS
        self._margin = self._width / 2
        self._lots: list[_Lot] = []
        """In the order in which they end."""
        self._added, self._back = 0.0, dict[int, float]()
        """What calls have spent beyond what they took and beyond what was here, and what comes back, by slot, since the
        last claim."""
        self._claimed: list[list[float]] = []
        """What claims have added that were not answered: pairs of the claim's turn and the amount."""
        self._spent, self._recent = 0.0, 0.0
        self._slowest, self._keep = 0.0, self._width
        self._offset = 0.0
        """What is added to a time of this process to get one of the ledger, which is not later than the true one."""

    @property
    def amount(self) -> float:
        """What all members may spend in the time of the rate."""
        return self._rate.amount

    @property
    def held(self) -> bool:
        """Whether it has tokens."""
        return bool(self._lots)

    @property
    def changed(self) -> bool:
        """Whether anything happened since the last claim."""
        return bool(self._spent or self._added or self._back)

    def take_at_once(self, cost: float, now: float) -> bool:
        """Take tokens for a call if those that end first have more than enough. Otherwise ask whether it `fits`."""
        lots = self._lots
        if not lots or lots[0].amount <= cost or lots[0].until < now:
            return False
        lots[0].amount -= cost
        self._spent += cost
        return True

    def put_back(self, cost: float) -> None:
        """Undo `take_at_once`."""
        self._lots[0].amount += cost
        self._spent -= cost

    def fits(self, cost: float, now: float) -> bool:
        """Whether there are tokens for a call."""
        if not cost:
            return True
        self._drop(now)
        return self._left() >= cost * ROUNDED

    def take(self, cost: float) -> None:
        """Take what fits, from the tokens that end first."""
        self._spent += cost
        self._spend(cost)

    def _pay(self) -> None:
        """Spend tokens that are here for what calls have spent beyond what they took."""
        paid = min(self._added, self._left())
        self._added -= paid
        self._spend(paid)

    def _spend(self, cost: float) -> None:
        while cost > 0 and self._lots:
            first = self._lots[0]
            if first.amount > cost:
                first.amount -= cost
                return
            cost -= first.amount
            del self._lots[0]

    def begin(self, cost: float, taken: float, now: float) -> None:
        """Count what was taken at the time `taken` for a call that begins now."""
        if cost and now > taken + self._margin:
            self._give_back(cost, self._slot(taken))
            self.settle(cost, now, now)

    def settle(self, amount: float, began: float, now: float) -> None:
        """Add what a call has spent beyond what it took, or, if negative, give it back.

        Tokens that are here pay for it first: the ledger has counted them, and no other call must take them.
        """
        if amount > 0:
            self._added += amount
            self._drop(now)  # what has ended is not counted for as long as what is spent now
            self._pay()
        elif amount < 0:
            self._give_back(-amount, self._slot(began))

    def claim(self, turn: int, cost: float, waiting: int, now: float, elapsed: float, ahead: float) -> dict[str, Any]:
        """The part of claim number `turn` for calls of which `waiting` wait and the first takes `cost`.

        `elapsed` is the time since the last claim. It asks ahead for what calls spend in `ahead` seconds.
        """
        self._drop(now)
        recent = max(self._spent / elapsed, self._recent / 2)
        # Otherwise a process that is idle would ask for less and less, and claim as often as a busy one.
        self._recent = recent if recent * self._rate.seconds > self._rate.amount * FORGOTTEN else 0.0
        kept, ahead = self._left(), self._recent * 2 * min(ahead, ahead_seconds(self._rate.seconds))
        # Tokens that arrive too late are not spent, so if answers are slow they are kept for longer.
        self._keep = max(min(self._slowest * 2, LONGEST_SECONDS) + self._margin, self._width)
        if self._added:
            self._claimed.append([turn, self._added])
            if len(self._claimed) > MOST_CLAIMED:
                # If one of the two has arrived, it counts twice, which is safe.
                (_, older), (later, newer), *rest = self._claimed
                self._claimed = [[later, older + newer], *rest]
        claim = {
            "amount": self._rate.amount, "seconds": self._rate.seconds,
            "settled": list(self._claimed), "back": [list(each) for each in sorted(self._back.items())],
            "keep": self._keep,
            "take": max(cost * waiting - kept, 0.0), "least": max(cost - kept, 0.0), "ahead": max(ahead - kept, 0.0),
        }  # fmt: skip
        self._added, self._spent, self._back = 0.0, 0.0, {}
        return claim

    def arrived(self) -> None:
        """Note that the last claim has arrived."""
        self._claimed = []

    def granted(self, tokens: list[float], ledger_now: float, sent: float, now: float) -> None:
        """Take what the ledger has granted at its time `ledger_now` for the claim that was sent at `sent`."""
        self._slowest = max(now - sent, self._slowest * SLOWER)
        self._offset = ledger_now - now
        slot = math.floor(ledger_now / self._width)
        for amount, keep in zip(tokens, (self._keep, max(ahead_seconds(self._rate.seconds), self._keep)), strict=True):
            if amount > 0:
                bisect.insort(self._lots, _Lot(sent + keep - self._margin, slot, amount), key=lambda lot: lot.until)
        self.arrived()
        self._drop(now)
        self._pay()

    def give_up(self) -> None:
        """Return all tokens with the next claim."""
        for lot in self._lots:
            self._give_back(lot.amount, lot.slot)
        self._lots.clear()

    def forget(self) -> None:
        """Forget tokens of a ledger that was lost. They are not counted any more, so they must not be spent."""
        self._lots.clear()
        self._back.clear()

    def _left(self) -> float:
        return math.fsum(lot.amount for lot in self._lots)

    def _drop(self, now: float) -> None:
        """Give back what was not spent in its time."""
        while self._lots and now > self._lots[0].until:
            lot = self._lots.pop(0)
            self._give_back(lot.amount, lot.slot)

    def _give_back(self, amount: float, slot: int) -> None:
        self._back[slot] = self._back.get(slot, 0.0) + amount

    def _slot(self, when: float) -> int:
        return math.floor((when + self._offset) / self._width)
