"""What a call has spent, in units such as tokens, and the time that a call may wait."""

import contextvars
import math
import threading

from udf_server.base.errors import InvalidCost

__all__ = ["Spending", "call_deadline", "checked_amounts", "current_spending", "spend"]


class Spending:
    """The amounts that one call has spent, by unit. Safe to use from any thread."""

    def __init__(self) -> None:
        self.amounts: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, amounts: dict[str, float]) -> None:
        with self._lock:
            for unit, amount in amounts.items():
                self.amounts[unit] = self.amounts.get(unit, 0.0) + amount


current_spending: contextvars.ContextVar[Spending | None] = contextvars.ContextVar("current_spending", default=None)
"""Where the current call adds what it spends; None if nothing counts it."""
call_deadline: contextvars.ContextVar[float] = contextvars.ContextVar("call_deadline", default=math.inf)
"""When a call on a thread must stop waiting for its guard, as a reading of the clock."""


def checked_amounts(amounts: object, source: str) -> dict[str, float]:
    """The amounts by unit. Raises InvalidCost, which names the source, unless they are numbers of at least 0."""
    if not isinstance(amounts, dict):
        raise InvalidCost(f"{source}: {amounts!r} has no units; expected a mapping such as {{'tokens': 120}}")
    for unit, amount in amounts.items():
        if isinstance(amount, bool) or not hasattr(amount, "__float__") or not 0 <= float(amount) < math.inf:
            raise InvalidCost(f"{source}: {unit}={amount!r} is not a number of at least 0")
    return {str(unit): float(amount) for unit, amount in amounts.items()}


def spend(source: str, amounts: dict[str, float]) -> None:
    """Add amounts to what the current call has spent. Raises InvalidCost, which names the source."""
    checked = checked_amounts(amounts, f"{source}: spend")
    spending = current_spending.get()
    if spending is not None:
        spending.add(checked)
