"""Limits decide which calls of a guarded function may begin. LocalLimits are those of one process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from udf_server.limits.rates import MovingWindow
from udf_server.limits.settings import GuardSettings

__all__ = ["Demand", "Limits", "LocalLimits"]


class Demand(NamedTuple):
    """What the calls of a guard need."""

    in_use: int
    """Number of calls that run."""
    waiting: int
    """Number of calls that wait and that the adaptive limit would let begin."""
    costs: Sequence[float]
    """What the first waiting call takes of each rate; empty if none waits."""


class Limits(ABC):
    """The limits of one guard, which calls the methods with its lock held. Nothing here waits."""

    @property
    @abstractmethod
    def places(self) -> float:
        """Number of calls that may run at once."""

    @property
    def unavailable(self) -> str:
        """Why no call may begin and none should wait; empty otherwise."""
        return ""

    @property
    def source(self) -> "Limits":
        """The limits that calls take from now: these, or those that replace them.

        Call `begin` and `settle` of those from which the call has taken, whatever replaces them meanwhile.
        """
        return self

    @abstractmethod
    def take_at_once(self, costs: Sequence[float], in_use: int, now: float) -> bool:
        """Take an amount of each rate for a call that begins `now`, while `in_use` calls run and none waits.

        Every call asks this first, so it must be cheap. If it returns False, it has taken nothing, and the caller asks
        for places and `take` one by one, which may still allow the call.
        """

    @abstractmethod
    def take(self, costs: Sequence[float]) -> float:
        """Take an amount of each rate. Returns 0.0, or the seconds to wait: infinity if calls are told when to try.

        Call `begin` when the call begins.
        """

    @abstractmethod
    def begin(self, costs: Sequence[float], taken: float) -> None:
        """Note that a call begins which has taken these amounts at the time `taken`."""

    @abstractmethod
    def settle(self, amounts: Sequence[float], began: float) -> None:
        """Add what a call has spent beyond what it took of each rate, or, if negative, give back.

        `began` is a time shortly before `begin` was called for that call.
        """

    @abstractmethod
    def pause(self, seconds: float) -> None:
        """Take nothing of the rates for this time, because the service asks for it."""

    @abstractmethod
    def left(self, in_use: int) -> None:
        """Note that a call ends, while `in_use` calls were running."""

    @abstractmethod
    def starved(self) -> None:
        """Note that a call waits."""


class LocalLimits(Limits):
    """Limits that count the calls of this process alone."""

    def __init__(self, settings: GuardSettings, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._most = float("inf") if settings.max_concurrency is None else settings.max_concurrency
        self._windows = [MovingWindow(rate, clock) for rate in settings.rate]
        self._rates = range(len(settings.rate))
        """The positions of the rates. A loop over them costs a fraction of one over a strict zip."""
        self._paused = 0.0

    @property
    def places(self) -> float:
        return self._most

    def take_at_once(self, costs: Sequence[float], in_use: int, now: float) -> bool:
        if in_use >= self._most or self._paused > now:
            return False
        for index in self._rates:
            if self._windows[index].wait(costs[index]):
                return False
        for index in self._rates:
            self._windows[index].settle(costs[index], now)
        return True

    def take(self, costs: Sequence[float]) -> float:
        if not self._windows:
            return 0.0
        wait = max(self._paused - self._clock(), 0.0) if self._paused else 0.0
        for window, cost in zip(self._windows, costs, strict=True):
            wait = max(wait, window.wait(cost))
        if not wait:
            for window, cost in zip(self._windows, costs, strict=True):
                window.take(cost)
        return wait

    def begin(self, costs: Sequence[float], taken: float) -> None:
        for window, cost in zip(self._windows, costs, strict=True):
            window.begin(cost)

    def settle(self, amounts: Sequence[float], began: float) -> None:
        for window, amount in zip(self._windows, amounts, strict=True):
            window.settle(amount, began)

    def pause(self, seconds: float) -> None:
        self._paused = max(self._paused, self._clock() + seconds)

    def starved(self) -> None:
        pass

    def left(self, in_use: int) -> None:
        pass
