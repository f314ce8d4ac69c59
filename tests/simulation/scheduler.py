"""Scheduler: virtual time, and the processes whose callbacks it runs one after the other.

Every random choice comes from a generator that is named after what it decides for. So a change in one part of a world
does not shift the choices in another, and a schedule from which faults are removed stays similar.
"""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

import greenlet

__all__ = ["Process", "Scheduler"]

SWITCH_SECONDS = 50e-6
"""Mean time until a thread or loop of a process notices that there is work for it."""
STALLED = 0.01
"""Share of these delays that are a hundred times as long, as if another program had the core."""


Event = tuple[float, int, "Process", Callable[..., object], tuple[Any, ...]]
"""When something happens, a number that no other event has, in which process, and what."""


class Process:
    """A simulated process. One that is dead does nothing more; one that is frozen does everything later."""

    def __init__(self, scheduler: "Scheduler", name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.alive = True
        self.frozen = self.was_frozen = False
        self.slow = 1.0
        """Factor by which everything takes longer."""
        self.threads: dict[Any, None] = {}
        """Its simulated threads that have not ended."""
        self.observers: list[Any] = []
        """What looks at the calls of `slow` in it."""
        self._random = scheduler.random(f"process {name}")
        self._held: list[Event] = []

    def after(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> None:
        self.scheduler.at(self.scheduler.now + seconds, self, callback, *arguments)

    def switch_seconds(self) -> float:
        """How long a thread or loop of this process takes to notice that there is work for it."""
        delay = self._random.expovariate(1 / SWITCH_SECONDS) * self.slow
        return delay * 100 if self._random.random() < STALLED else delay

    def kill(self) -> None:
        """End at once, without any clean-up."""
        self.alive = False
        self._held.clear()

    def freeze(self) -> None:
        self.frozen = self.was_frozen = True

    def thaw(self) -> None:
        """Continue. What was held happens now, in its order."""
        self.frozen = False
        held, self._held = sorted(self._held), []
        for event in held:
            self.scheduler.again(event)

    def hold(self, event: Event) -> None:
        self._held.append(event)


class Scheduler:
    """Runs events in the order of their times. Events of the same time run in the order in which they were made."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.events = 0
        """Number of events that ran."""
        self.trace: list[str] = []
        self._seed = seed
        self._heap: list[Event] = []
        self._made = self._numbers = 0
        self._until, self._limit = 0.0, 0
        """The time and the number of events at which `run` ends."""
        self._failure: BaseException | None = None
        self.hub = greenlet.getcurrent()
        """What runs the events; simulated threads switch to it when they wait."""

    def clock(self) -> float:
        # No caller may take the beginning of time for "never".
        return 1_000.0 + self.now

    def random(self, name: str) -> Random:
        """A generator for what `name` decides."""
        return Random(f"{self._seed} {name}")

    def next_number(self) -> int:
        """A number that nothing else in this world has."""
        self._numbers += 1
        return self._numbers

    def note(self, who: str, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now:12.6f} {who:12} {what}")

    def at(self, when: float, process: Process, callback: Callable[..., object], *arguments: Any) -> None:
        if process.alive:
            self._made += 1
            now = self.now
            heapq.heappush(self._heap, (when if when > now else now, self._made, process, callback, arguments))

    def again(self, event: Event) -> None:
        heapq.heappush(self._heap, (self.now, *event[1:]))

    def fail(self, error: BaseException) -> None:
        """End the run: `run` raises this."""
        self._failure = self._failure or error

    def pass_to(self, when: float) -> bool:
        """Whether nothing else happens until `when`: then it is that time, and what runs now may go on."""
        if (self._heap and self._heap[0][0] <= when) or when > self._until or self.events >= self._limit:
            return False
        self.now = max(self.now, when)
        self.events += 1
        return self._failure is None

    def run(self, done: Callable[[], bool], until: float, most_events: int) -> bool:
        """Run events until `done`. Returns False if that is not so at a time, or after a number of events."""
        self._limit, self._until = self.events + most_events, until
        heap, pop = self._heap, heapq.heappop
        while not done():
            if not heap or heap[0][0] > until or self.events >= self._limit:
                return False
            event = pop(heap)
            self.now, _, process, callback, arguments = event
            if not process.alive:
                continue
            if process.frozen:
                process.hold(event)
                continue
            self.events += 1
            callback(*arguments)
            if self._failure is not None:
                raise self._failure
        return True
