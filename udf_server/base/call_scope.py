"""What the server knows of the call or thread that runs: whose it is, how long it may take, what it spends."""

import asyncio
import contextvars
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from remote_udf.amounts import UNIT_BYTES, add_amounts, is_unit
from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from udf_server.base.errors import InvalidCost
from udf_server.base.fairness import ANYONE, Party

__all__ = [
    "NO_CALL",
    "AttemptTimeout",
    "CallScope",
    "EmptyResult",
    "NotCalled",
    "Race",
    "Spending",
    "StreamSpending",
    "WaitCancelled",
    "WaitTimeout",
    "checked_amounts",
    "current_scope",
    "leave_scope",
    "running_function",
    "runs",
    "spend",
]


class Spending:
    """The amounts that one call has spent, by unit. Safe to use from any thread."""

    def __init__(self) -> None:
        self.amounts: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, amounts: dict[str, float]) -> None:
        with self._lock:
            add_amounts(self.amounts, amounts)


class StreamSpending(Spending):
    """The amounts that the calls of one stream have spent and that its client has not been told."""

    def __init__(self, count: Callable[[dict[str, float]], None] = lambda amounts: None) -> None:
        """`count` is called with the amounts of each report, from any thread."""
        super().__init__()
        self._count = count

    def add(self, amounts: dict[str, float]) -> None:
        super().add(amounts)
        self._count(amounts)

    def take(self) -> dict[str, float]:
        """The amounts since this was called last."""
        if not self.amounts:
            return {}
        with self._lock:
            taken, self.amounts = self.amounts, {}
        return taken


def checked_amounts(amounts: object, source: str) -> dict[str, float]:
    """The amounts by unit. Raises InvalidCost, which names the source, unless they are numbers of at least 0."""
    if not isinstance(amounts, dict):
        raise InvalidCost(f"{source}: {amounts!r} has no units; expected a mapping such as {{'tokens': 120}}")
    return {_checked_unit(unit, source): _checked_amount(unit, amount, source) for unit, amount in amounts.items()}


def _checked_unit(unit: object, source: str) -> str:
    """Metrics and messages carry it."""
    text = str(unit)
    if not is_unit(text):
        raise InvalidCost(
            f"{source}: {text[:UNIT_BYTES]!r} is no unit; expected printable characters, 1 to {UNIT_BYTES} bytes in "
            "UTF-8"
        )
    return text


def _checked_amount(unit: object, amount: object, source: str) -> float:
    try:
        number = math.nan if isinstance(amount, bool) else float(amount)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf or isinstance(amount, str | bytes):
        raise InvalidCost(f"{source}: {unit}={amount!r} is not a number of at least 0")
    return number


class AttemptTimeout(TimeoutError):
    """An attempt had no result within `attempt-timeout`."""


class EmptyResult(Exception):
    """With `retry-empty`, the result of an attempt is null or an array without a value."""

    def __init__(self, value: object) -> None:
        super().__init__("the result is empty")
        self.value = value


class NotCalled(BaseException):
    """The time for the call ended while it waited for a guard or a budget, so the call was not made."""

    def __init__(self, message: str = "", *, unavailable: str = "") -> None:
        """`unavailable` says what could not be counted then; empty if the limits allowed no call."""
        super().__init__(message)
        self.unavailable = unavailable

    def outcome(self, made: int, timed_out: Callable[[int], RowError]) -> RowError:
        """The outcome of its rows after `made` calls, by default that of rows that have timed out."""
        if not self.unavailable:
            return timed_out(made)
        return RowError(ErrorCode.BUDGET_UNAVAILABLE, self.unavailable, made, retryable=True)


class WaitTimeout(NotCalled, TimeoutError):
    """The deadline of the rows passed while a thread waited."""


class WaitCancelled(NotCalled, asyncio.CancelledError):
    """A task was cancelled while it waited."""


class Race(Protocol):
    """Two calls for the same rows, of which one gives the outcome."""

    decided: bool
    """Whether one of the calls has given the outcome. Then the other one is cancelled, but has not failed."""

    def begins(self) -> None:
        """The limits of the function let one of the calls pass."""


# It is not frozen, because that takes four times as long to create, and there is one per call on a thread.
@dataclass(slots=True, eq=False)
class CallScope:
    """The scope of one call, or of the calls that a worker makes one after the other. Do not change it."""

    party: Party = ANYONE
    """For whose row the function is called."""
    deadline: float = math.inf
    """When a call on a thread must stop waiting for limits or for an instance, as a reading of the clock."""
    spending: Spending | None = None
    """Where the call adds what it spends; None if no limit counts it."""
    race: Race | None = None
    """The race in which the call is; None if no second call may be sent for it."""
    taken: tuple[tuple[object, Any], ...] = ()
    """The budgets from which the call has taken, each behind the stream's part of it."""


NO_CALL = CallScope()
"""For code outside of a call. A thread returns to it, because it must not keep an ended stream in memory."""
current_scope: contextvars.ContextVar[CallScope] = contextvars.ContextVar("current_scope", default=NO_CALL)


def leave_scope(left: CallScope, outer: CallScope) -> None:
    """Return to the scope around one that is left.

    If nobody awaits a coroutine any more, Python closes it in the context of any other code, whose scope stays.
    """
    if current_scope.get() is left:
        current_scope.set(outer)


def spend(source: str, amounts: dict[str, float], streams: Mapping[StreamSpending, float]) -> None:
    """Add amounts to what the current call has spent, and to its streams by their shares of it.

    Raises InvalidCost, which names the source.
    """
    checked = checked_amounts(amounts, f"{source}: spend")
    if (spending := current_scope.get().spending) is not None:
        spending.add(checked)
    for stream, share in streams.items():
        stream.add({unit: amount * share for unit, amount in checked.items()})


_thread = threading.local()


def runs(key: str) -> None:
    """Note that this thread runs the code of one function, `name@version`, from now on."""
    name, _, version = key.partition("@")
    _thread.function = (name, version)


def running_function() -> tuple[str, str]:
    """Name and version of the function whose loop or thread this is; empty texts in any other thread."""
    found: tuple[str, str] = getattr(_thread, "function", ("", ""))
    return found
