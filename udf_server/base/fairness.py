"""FairQueue shares a function fairly: between callers, then between the jobs of a caller, then between their streams.

It uses start-time fair queueing at each level: the child that was served least comes first, a child that returns after
a pause starts where the others are, and the cost of a turn is charged when it is known. A caller with a larger share is
charged less for it. Callers of a lower priority are served only while no others wait. The cost of an operation grows
with the logarithm of the number of streams.
"""

import collections
import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator
from enum import StrEnum
from typing import Any, Generic, TypeVar

__all__ = ["ANYONE", "FairQueue", "Party", "Priority"]

T = TypeVar("T")


class Priority(StrEnum):
    """Whose rows come first; the highest priority is the first."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Party:
    """The caller and job of a stream. Each stream has a separate party; `close` removes it from every queue."""

    def __init__(
        self, caller: str = "", job: str = "", *, share: float = 1.0, priority: Priority = Priority.BATCH
    ) -> None:
        """`caller` is the principal of the token or certificate, else the address; `job` is the name that it gives.

        `share` and `priority` are those of the caller.
        """
        self.caller, self.job, self.share, self.priority = caller, job, share, priority
        self.closed = False
        self._leaves: dict[FairQueue[Any], _Node[Any]] = {}
        self._watching: dict[object, Callable[[], object]] = {}

    def close(self) -> None:
        """Remove the party from every queue. Call when the stream has ended, from any thread. Safe to call twice."""
        self.closed = True
        for queue in list(self._leaves):
            queue.leave(self)
        for closed in list(self._watching.values()):
            closed()

    @contextlib.contextmanager
    def watched(self, closed: Callable[[], object]) -> Iterator[None]:
        """Call `closed` if the party closes meanwhile; look afterwards whether it had closed before."""
        watch = object()
        self._watching[watch] = closed
        try:
            yield
        finally:
            del self._watching[watch]


ANYONE = Party()
"""For calls outside of a stream."""


class _Node(Generic[T]):
    """A node of a tree: the root, a caller, a job or a stream."""

    __slots__ = ("children", "heap", "held", "items", "key", "now", "parent", "queued", "served", "share", "waiting")

    def __init__(self, key: Any = None, parent: "_Node[T] | None" = None, share: float = 1.0) -> None:
        self.key, self.parent, self.share = key, parent, share
        self.children: dict[Hashable, _Node[T]] = {}
        self.heap: list[tuple[float, int, _Node[T]]] = []
        """Children with waiting items, each once. Some entries may have no waiting items any more."""
        self.queued = False
        """Whether the node is in its parent's heap."""
        self.items: collections.deque[T] = collections.deque()
        """The waiting items of a stream."""
        self.held = False
        """Whether the items of a stream are passed over."""
        self.waiting = 0
        """Number of waiting items of this node and its descendants."""
        self.served = 0.0
        """The cost that was charged, over the share, or would have been if the node had always had waiting items."""
        self.now = 0.0
        """The `served` of the child that was served last, before that turn."""


class FairQueue(Generic[T]):
    """A queue of the items of parties. Safe to use from any thread."""

    def __init__(self) -> None:
        self._roots: dict[Priority, _Node[T]] = {priority: _Node() for priority in Priority}
        """A tree for each priority, the highest one first."""
        self._lock = threading.Lock()
        self._order = itertools.count()
        self.groups = 0
        """Number of jobs that have joined."""

    def __len__(self) -> int:
        return sum(root.waiting for root in self._roots.values())

    def join(self, party: Party) -> None:
        """Add the party before it has waiting items, unless it has closed. Safe to call twice."""
        with self._lock:
            self._leaf(party)
        self._leave_if_closed(party)

    def leave(self, party: Party) -> None:
        """Remove the party and its waiting items. Safe to call twice."""
        with self._lock:
            node = party._leaves.pop(self, None)  # noqa: SLF001 - of this module
            if node is None:
                return
            dropped = node.waiting
            node.items.clear()  # its parent's heap may refer to it for some time
            while node.parent is not None:
                parent = node.parent
                parent.waiting -= dropped
                if not node.children:
                    node.waiting = 0  # `_next` skips its entry in the heap, if there is one, because of this
                    del parent.children[node.key]
                    self.groups -= node.key is not party and parent.parent is not None
                node = parent

    def push(self, party: Party, item: T) -> None:
        """Add an item. If the party has closed, the item is dropped."""
        with self._lock:
            leaf = self._leaf(party)
            leaf.items.append(item)
            if not leaf.held:
                self._wait(leaf, 1)
        self._leave_if_closed(party)

    def _wait(self, leaf: _Node[T], items: int) -> None:
        node: _Node[T] | None = leaf
        while node is not None:
            node.waiting += items
            if node.waiting == items and node.parent is not None:
                node.served = max(node.served, node.parent.now)
                self._enter(node)
            node = node.parent

    def hold(self, party: Party, item: T, cost: float) -> None:
        """Put back the item that was popped last for this cost, and pass over the party until `resume` is called."""
        with self._lock:
            leaf = party._leaves.get(self)  # noqa: SLF001 - of this module
            if leaf is None:
                return
            leaf.items.appendleft(item)
            leaf.held, waiting = True, leaf.waiting
            node: _Node[T] | None = leaf
            while node is not None:
                node.waiting -= waiting
                node.served -= cost / node.share
                node = node.parent

    def resume(self, party: Party) -> None:
        """Serve a party again that was passed over. Its first item comes before those of parties served as much."""
        with self._lock:
            leaf = party._leaves.get(self)  # noqa: SLF001 - of this module
            if leaf is not None and leaf.held:
                leaf.held = False
                if leaf.items:
                    self._wait(leaf, len(leaf.items))

    def held(self, party: Party) -> "collections.deque[T] | None":
        """The items of a party that is passed over; None if it is not. Do not change them."""
        leaf = party._leaves.get(self)  # noqa: SLF001 - of this module
        return leaf.items if leaf is not None and leaf.held else None

    def pop(self, cost: float, gone: Callable[[T], bool] | None = None) -> tuple[Party, T] | None:
        """Remove and return the next item with its party, which is charged `cost`. None if nothing waits.

        Items that are `gone` are removed, and their parties are not charged.
        """
        with self._lock:
            for root in self._roots.values():
                while root.waiting:
                    node = root
                    while node.children:
                        node = self._next(node)
                    item, party = node.items.popleft(), node.key
                    unwanted = gone is not None and gone(item)
                    while node.parent is not None:
                        node.waiting -= 1
                        if not unwanted:
                            node.served += cost / node.share
                        if node.waiting:
                            self._enter(node)
                        node = node.parent
                    root.waiting -= 1
                    if not unwanted:
                        return party, item
            return None

    def remove(self, party: Party, item: T) -> None:
        """Remove an item that waits no more, if it is still there. Its party is not charged."""
        with self._lock:
            node: _Node[T] | None = party._leaves.get(self)  # noqa: SLF001 - of this module
            if node is None:
                return
            try:
                node.items.remove(item)
            except ValueError:
                return
            if node.held:
                return
            while node is not None:
                node.waiting -= 1  # `_next` skips nodes in which nothing waits
                node = node.parent

    def overtake(self, party: Party, cost: float) -> bool:
        """Whether the party has no waiting items and was served less than all others. If so, it is charged `cost`.

        False if it has not joined, has closed, or if items of a higher priority wait.
        """
        with self._lock:
            leaf = party._leaves.get(self)  # noqa: SLF001 - of this module
            if leaf is None:
                return False
            for priority, root in self._roots.items():
                if priority is party.priority:
                    break
                if root.waiting:
                    return False
            node = leaf
            while node.parent is not None:
                if node.waiting or node.served > node.parent.now:
                    return False
                node = node.parent
            node = leaf
            while node.parent is not None:
                node.served = max(node.served, node.parent.now) + cost / node.share
                node = node.parent
            return True

    def charge(self, party: Party, cost: float) -> None:
        """Charge the party more (or, if negative, less) than was charged for its turn."""
        node = party._leaves.get(self)  # noqa: SLF001 - of this module
        while node is not None:
            node.served += cost / node.share
            node = node.parent

    def _leave_if_closed(self, party: Party) -> None:
        # This is checked after the party was added: either this check sees the closing, or the closing sees the party.
        if party.closed:
            self.leave(party)

    def _next(self, node: _Node[T]) -> _Node[T]:
        """Remove the next child to serve from the heap and return it."""
        while True:
            served, _, child = heapq.heappop(node.heap)
            child.queued = False
            if not child.waiting:
                continue
            if served < child.served:
                # The child was charged after it was added to the heap.
                self._enter(child)
                continue
            node.now = max(node.now, served)
            return child

    def _enter(self, node: _Node[T]) -> None:
        assert node.parent is not None
        if node.queued:
            return
        node.queued = True
        heapq.heappush(node.parent.heap, (node.served, next(self._order), node))

    def _leaf(self, party: Party) -> _Node[T]:
        found = party._leaves.get(self)  # noqa: SLF001 - of this module
        if found is not None:
            return found
        node = root = self._roots[party.priority]
        for key in (party.caller, party.job, party):
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(key, node, party.share if node is root else 1.0)
                child.served = node.now
                self.groups += key is party.job and node is not root
            node = child
        party._leaves[self] = node  # noqa: SLF001 - of this module
        return node
