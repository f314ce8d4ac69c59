"""What a call has spent, in units such as tokens."""

import math
import threading
from collections.abc import Callable

from remote_udf.amounts import UNIT_BYTES, add_amounts, is_unit
from udf_server.base.errors import InvalidCost

__all__ = ["Spending", "StreamSpending", "checked_amounts"]


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
