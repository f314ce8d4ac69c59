"""WaitingCalls are the calls that wait for a guard, in fair order by caller, job and stream."""

from collections.abc import Sequence

from udf_server.base.fairness import ANYONE, FairQueue, Party
from udf_server.guards.waiting import Waiter

__all__ = ["WaitingCalls"]


class WaitingCalls:
    """The guard uses it with its lock held. A party is charged one turn for each of its calls that begins."""

    def __init__(self) -> None:
        self.queue: FairQueue[Waiter] = FairQueue()
        """The calls that wait, without the first one."""
        self._first: Waiter | None = None
        """The call whose turn it is. It stays the first one until it begins, whoever comes meanwhile."""
        self._party = ANYONE

    def __len__(self) -> int:
        return len(self.queue) + (self._first is not None)

    def push(self, party: Party, waiter: Waiter) -> None:
        """Add a call. If its stream has ended, it is dropped."""
        self.queue.push(party, waiter)

    @property
    def costs(self) -> Sequence[float] | None:
        """What the first call takes of each rate; None if nobody has looked for the first one."""
        return None if self._first is None else self._first.costs

    def first(self) -> Waiter | None:
        """The call whose turn it is, which goes on waiting; None if none waits."""
        while True:
            if self._first is None:
                found = self.queue.pop(1.0, lambda waiter: waiter.gone)
                if found is None:
                    return None
                self._party, self._first = found
            if not self._first.gone:
                return self._first
            self.drop_first()

    def begin_first(self) -> None:
        """Remove the first call, which begins."""
        self._first = None

    def drop_first(self) -> None:
        """Remove the first call, which does not begin, and give its turn back."""
        self.give_back(self._party)
        self._first = None

    def remove(self, party: Party, waiter: Waiter) -> None:
        """Remove a call that waits no more, if it is there: it must not be claimed for."""
        if waiter is self._first:
            self.drop_first()
        else:
            self.queue.remove(party, waiter)

    def give_back(self, party: Party) -> None:
        """Give back the turn of a call that was to begin and does not."""
        self.queue.charge(party, -1.0)
