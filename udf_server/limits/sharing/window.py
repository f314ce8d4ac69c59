"""Window counts the units of one rate: those that begin in its time, and those that are owed to its pace."""

import bisect
import math
from math import floor

__all__ = ["LOCAL_SLOTS", "SLOTS", "Window"]

SLOTS, LOCAL_SLOTS = 200, 1_000
"""Number of parts of a window, if processes share it and otherwise. Units of a part are counted until the end of the
part is out of the window."""
ROUNDED = 1e-9
"""Sums of fractions are not exact."""


class Window:
    """The rules of a rate: at most `amount` units in any `seconds`, of which at most `burst` begin at once.

    Beyond the burst, units begin at the pace of the rate; a call of more units begins when none are owed. It has no
    clock. A process whose rate is its own takes from it without asking; `Ledger` takes from it for its members.
    """

    def __init__(self, amount: float, seconds: float, burst: float | None = None, slots: int = SLOTS) -> None:
        """Without a burst, all units may begin at once."""
        self.amount, self.seconds, self.burst = amount, seconds, burst
        self._width, self._pace = seconds / slots, seconds / amount
        self._slots: list[int] = []
        """In order, and beside it what was counted in each."""
        self._amounts: list[float] = []
        self._sum = 0.0
        self._held = 0.0
        """What calls have taken that were admitted, and have not begun yet."""
        self._due = -math.inf
        """When nothing is owed any more, at the pace of the rate."""
        self._ahead = math.inf if burst is None else burst * self._pace
        """How far ahead that may be."""
        self._next = -math.inf
        """When the oldest units are out of the window."""

    # What calls of this process do, if the rate is its own.

    def take_at_once(self, cost: float, now: float) -> bool:
        """Take units for a call that begins now, if they surely fit. Otherwise ask for the `wait`.

        Nearly every call can, so this does what `wait` and `add` do without calling them.
        """
        if now >= self._next:
            self._forget(now)
        due = self._due if self._due > now else now
        if self._sum + self._held + cost > self.amount or due + cost * self._pace > now + self._ahead:
            return False
        slots, slot = self._slots, floor(now / self._width)
        if slots and slots[-1] == slot:
            self._sum += cost
            self._amounts[-1] += cost
        else:
            self._count(cost, slot)
        self._due = due + cost * self._pace
        return True

    def put_back(self, cost: float, now: float) -> None:
        """Undo `take_at_once`."""
        self.take_back(cost, self.slot(now), now)

    def wait(self, cost: float, now: float) -> float:
        """Seconds until a call may begin; 0.0 if it may now."""
        self._forget(now)
        wait = 0.0
        if self.burst is not None:
            wait = max(self._due - now - max(self._ahead - cost * self._pace, 0.0), 0.0)
        left = self._sum + self._held + cost - self.amount
        if left <= ROUNDED * self.amount or not (self._slots or self._held):
            return wait
        for slot, each in zip(self._slots, self._amounts, strict=True):
            left -= each
            if left <= ROUNDED * self.amount:
                return max(wait, (slot + 1) * self._width + self.seconds - now)
        return self.seconds

    def take(self, cost: float, now: float) -> None:
        """Take units until `begin` counts them from then on, because the call begins."""
        self._held += cost
        self._owe(cost, now)

    def begin(self, cost: float, taken: float, now: float) -> None:
        """Count units that were taken at the time `taken` from now on."""
        self._held = max(self._held - cost, 0.0)
        self._count(cost, self.slot(now))

    def settle(self, amount: float, began: float, now: float) -> None:
        """Add what a call has spent beyond what it took at the time `began`, or, if negative, give it back."""
        if amount < 0:
            self.take_back(-amount, self.slot(began), now)
        else:
            self.add(amount, now)

    # What a ledger does, too.

    def room(self, least: float, now: float) -> float:
        """The units that may begin now, if calls take at least `least` of them."""
        self._forget(now)
        room = self.amount - self._sum - self._held
        if self.burst is None:
            return room
        paced = self.burst - max(self._due - now, 0.0) / self._pace
        return min(room, max(paced, least) if self._due <= now else paced)

    def add(self, amount: float, now: float, keep: float = 0.0) -> None:
        """Count units as if they began after `keep` seconds: at the latest time at which they may."""
        if amount > 0:
            self._count(amount, self.slot(now + keep))
            self._owe(amount, now)

    def take_back(self, amount: float, first: int, now: float) -> None:
        """Take back units that were counted in the slot `first` or later, and have not begun.

        The oldest units from that slot on are taken back, also units of other calls: the units that are left count
        longer than older ones would. What is out of the window is counted no more, and must not be taken from others.
        """
        if (first + 1) * self._width + self.seconds <= now:
            return
        for index in range(bisect.bisect_left(self._slots, first), len(self._slots)):
            taken = min(self._amounts[index], amount)
            self._amounts[index] -= taken
            self._sum -= taken
            self._due -= taken * self._pace
            amount -= taken
            if amount <= 0:
                return

    def set_back(self, late: float) -> None:
        """Count everything this much earlier, because the clock was set back."""
        slots = floor(late / self._width)
        self._slots = [slot - slots for slot in self._slots]
        self._due, self._next = self._due - late, -math.inf

    def slot(self, when: float) -> int:
        """The part of a window in which units are counted that begin at this time."""
        return floor(when / self._width)

    def used(self, now: float) -> float:
        """What is counted at this time."""
        self._forget(now)
        return math.fsum(self._amounts)

    def _count(self, amount: float, slot: int) -> None:
        self._sum += amount
        slots = self._slots
        index = bisect.bisect_left(slots, slot)
        if index < len(slots) and slots[index] == slot:
            self._amounts[index] += amount
        else:
            slots.insert(index, slot)
            self._amounts.insert(index, amount)
            self._next = min(self._next, (slot + 1) * self._width + self.seconds)

    def _owe(self, amount: float, now: float) -> None:
        self._due = max(self._due, now) + amount * self._pace

    def _forget(self, now: float) -> None:
        """Drop what is out of the window."""
        slots, gone = self._slots, (now - self.seconds) / self._width - 1
        while slots and slots[0] <= gone:
            del slots[0]
            self._sum -= self._amounts.pop(0)
        if slots:
            self._next = (slots[0] + 1) * self._width + self.seconds
        else:
            self._sum, self._next = 0.0, math.inf
