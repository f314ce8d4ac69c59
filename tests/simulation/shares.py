"""Shares looks at what callers, jobs and streams get that wait for the same thing: their shares must be equal.

The bound is four and twice the places. Of two children that wait all the time, a fair queue takes the one that was
charged less, so what they were charged since both wait differs by one turn at most, and by another one when the second
began to wait. A turn that is given back stays in the heap until the child's next turn, which makes one more for each.
A row counts when its call begins, some time after its turn: all places may be on their way to one child when both
begin to wait, and to the other child at the end. Where there are no places, as with a guard that has only a rate, any
number of calls may be on their way: as many as were so when both began to wait, and as are so now, are added.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Any

from tests.simulation.oracles import Violation

__all__ = ["Shares", "members"]


def members(party: Any) -> tuple[Hashable, ...]:
    """What a stream's rows count for: its caller, the job of the caller, and the stream."""
    return party.caller, (party.caller, party.job), party


class Shares:
    """The calls of `slow` for each caller, job and stream of one process."""

    def __init__(self) -> None:
        self.served: Counter[Hashable] = Counter()
        self._waiting: dict[Any, tuple[dict[Hashable, int], int]] = {}
        """The nodes of queues to what each of their children that wait had been served when they began to, and how many
        calls had had their turn and had not begun then."""

    def began(self, x: int, now: float, loop: Any, party: Any) -> None:
        """A row of this party has been served."""
        self.served.update(members(party))

    def ended(self, x: int, now: float, loop: Any, party: Any, went_well: bool | None) -> None:
        pass

    def look(self, queue: Any, most: int, where: str, coming: int = 0) -> None:
        """Compare the children of each node of a FairQueue. Raises Violation if their shares differ by more.

        `coming` is the number of calls that have had their turn and have not begun, if `most` does not include them.
        """
        for root in queue._roots.values():
            self._look(root, (), most, where, coming)

    def _look(self, node: Any, path: tuple[Hashable, ...], most: int, where: str, coming: int) -> None:
        children = [child for child in node.children.values() if child.waiting]
        for child in children:
            if child.children:
                self._look(child, (*path, child.key), most, where, coming)
        if len(children) < 2:
            self._waiting.pop(node, None)
            return
        waiting = [self._member(path, child.key) for child in children]
        base, came = self._waiting.get(node, ({}, 0))
        if base.keys() != set(waiting):
            self._waiting[node] = {member: self.served[member] for member in waiting}, coming
            return
        shares = [self.served[member] - base[member] for member in waiting]
        if max(shares) - min(shares) > most + came + coming:
            what = ("callers", "jobs", "streams")[len(path)]
            raise Violation(f"{where}: {what} that waited were served {sorted(shares)} rows")

    def _member(self, path: tuple[Hashable, ...], key: Hashable) -> Hashable:
        return key if len(path) != 1 else (*path, key)
