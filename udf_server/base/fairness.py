"""FairQueue: what waits for a function, served in turn: callers first, then the jobs of a caller, then their streams.

Start-time fair queueing at each level: the child that was served least goes first, one that comes back after a while
starts where the others are, and what a turn has cost is charged when it is known. The cost of an operation grows with
the logarithm of the streams.
"""

import collections
import contextvars
import heapq
import itertools
import threading
from typing import Any, Generic, TypeVar

__all__ = ["ANYONE", "FairQueue", "Party", "current_party"]

T = TypeVar("T")


class Party:
    """Who a stream works for. Each stream has one of its own; `close` forgets it in every queue."""

    def __init__(self, caller: str = "", job: str = "") -> None:
        """`caller` is who the token or certificate says, else the address; `job` is what the caller says."""
        self.caller, self.job = caller, job
        self.closed = False
        self._leaves: dict[FairQueue[Any], _Node] = {}

    def close(self) -> None:
        """The stream has ended. From any thread, safe to call twice."""
        self.closed = True
        for queue in list(self._leaves):
            queue.leave(self)


ANYONE = Party()
"""For calls outside of a stream."""
current_party: contextvars.ContextVar[Party] = contextvars.ContextVar("current_party", default=ANYONE)
"""Whose row the running task calls the function for."""


class _Node:
    """The root, a caller, a job or a stream."""

    __slots__ = ("children", "heap", "items", "key", "now", "parent", "queued", "served", "waiting")

    def __init__(self, key: Any = None, parent: "_Node | None" = None) -> None:
        self.key, self.parent = key, parent
        self.children: dict[Any, _Node] = {}
        self.heap: list[tuple[float, int, _Node]] = []
        """Children with something that waits, once each; perhaps some of which nothing waits any more."""
        self.queued = False
        """It is in its parent's heap."""
        self.items: collections.deque[Any] = collections.deque()
        """What waits, of a stream."""
        self.waiting = 0
        """Items here and below."""
        self.served = 0.0
        """What it has cost, or would have if it had waited all the time."""
        self.now = 0.0
        """How much the child that was served last had been served before."""


class FairQueue(Generic[T]):
    """Items of parties. Safe to use from any thread."""

    def __init__(self) -> None:
        self._root = _Node()
        self._lock = threading.Lock()
        self._order = itertools.count()
        self.groups = 0
        """Jobs of callers that have joined."""

    def __len__(self) -> int:
        return self._root.waiting

    def join(self, party: Party) -> None:
        """Makes the party known before anything of it waits. Safe to call twice."""
        with self._lock:
            self._leaf(party)

    def leave(self, party: Party) -> None:
        """Forgets the party and what waits of it. Safe to call twice."""
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
                    node.waiting = 0  # which is how its entry in the heap, if there is one, is recognized
                    del parent.children[node.key]
                    self.groups -= node.key is not party and parent.parent is not None
                node = parent

    def push(self, party: Party, item: T) -> None:
        """Adds an item; of a party that has closed it is dropped."""
        self._push(party, item)
        if party.closed:
            # Looked at afterwards: either this sees that it has closed, or closing sees that it is here.
            self.leave(party)

    def _push(self, party: Party, item: T) -> None:
        with self._lock:
            leaf = self._leaf(party)
            leaf.items.append(item)
            node: _Node | None = leaf
            while node is not None:
                node.waiting += 1
                if node.waiting == 1 and node.parent is not None:
                    node.served = max(node.served, node.parent.now)
                    self._enter(node)
                node = node.parent

    def pop(self, cost: float) -> tuple[Party, T] | None:
        """What is next, and whose; it is charged `cost`. None if nothing waits."""
        with self._lock:
            node = self._root
            if not node.waiting:
                return None
            while node.children:
                node = self._next(node)
            item, party = node.items.popleft(), node.key
            while node.parent is not None:
                node.waiting -= 1
                node.served += cost
                if node.waiting:
                    self._enter(node)
                node = node.parent
            node.waiting -= 1
            return party, item

    def overtake(self, party: Party, cost: float) -> bool:
        """Whether nothing of the party waits and it was served less than all others; if so it is charged for a turn."""
        with self._lock:
            leaf = self._leaf(party)
            node = leaf
            while node.parent is not None:
                if node.waiting or node.served > node.parent.now:
                    return False
                node = node.parent
            node = leaf
            while node.parent is not None:
                node.served = max(node.served, node.parent.now) + cost
                node = node.parent
            return True

    def charge(self, party: Party, cost: float) -> None:
        """A turn of the party has cost so much more (or, if negative, less) than it was charged."""
        node = party._leaves.get(self)  # noqa: SLF001 - of this module
        while node is not None:
            node.served += cost
            node = node.parent

    def _next(self, node: _Node) -> _Node:
        """The child to serve, taken from the heap."""
        while True:
            served, _, child = heapq.heappop(node.heap)
            child.queued = False
            if not child.waiting:
                continue
            if served < child.served:
                # It was charged meanwhile.
                self._enter(child)
                continue
            node.now = max(node.now, served)
            return child

    def _enter(self, node: _Node) -> None:
        assert node.parent is not None
        if node.queued:
            return
        node.queued = True
        heapq.heappush(node.parent.heap, (node.served, next(self._order), node))

    def _leaf(self, party: Party) -> _Node:
        found = party._leaves.get(self)  # noqa: SLF001 - of this module
        if found is not None:
            return found
        node = self._root
        for key in (party.caller, party.job, party):
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(key, node)
                child.served = node.now
                self.groups += key is party.job and node is not self._root
            node = child
        party._leaves[self] = node  # noqa: SLF001 - of this module
        return node
