"""CallCosts say what a call takes of each rate of its guard, by the estimate of the function."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from udf_server.base.errors import InvalidConfig, InvalidCost
from udf_server.base.functions import Function
from udf_server.guards.rates import CALLS, RateLimit, amounts_of

__all__ = ["CallCosts"]

log = logging.getLogger(__name__)


class CallCosts:
    """What calls of one function cost, in the units of its rates."""

    def __init__(self, key: str, rates: Sequence[RateLimit]) -> None:
        self._key, self._rates = key, rates
        self._units = {rate.unit for rate in rates} - {CALLS}
        self._compared = False
        """Whether the units of an estimate were compared with those of the rates."""

    def require(self, function: Function) -> None:
        """Raises InvalidConfig if a rate has a unit that the calls of the function do not cost."""
        if self._units and function.cost is None:
            raise InvalidConfig(
                f"setting guards, function {self._key}: rate counts {', '.join(sorted(self._units))}, but the function "
                "is declared without `cost`, which says how much a call is going to cost"
            )

    def of(self, function: Function) -> Callable[[Sequence[Any]], Sequence[float]] | None:
        """What a call takes of each rate, by its arguments; None if all rates count calls."""
        if function.cost is None or not self._units:
            return None

        def costs(arguments: Sequence[Any]) -> Sequence[float]:
            estimate = function.estimated(arguments)
            if not self._compared and estimate:
                self._compare(estimate)
            found = amounts_of(self._rates, estimate)
            for rate, amount in zip(self._rates, found, strict=True):
                if amount > rate.amount:
                    raise InvalidCost(
                        f"function {self._key}: cost: a call of {amount:g} {rate.unit} never fits the rate {rate}"
                    )
            return found

        return costs

    def _compare(self, estimate: Mapping[str, float]) -> None:
        """Warn if the first estimate lacks a unit of the rates: such a rate bounds nothing."""
        self._compared = True
        if missing := sorted(self._units - estimate.keys()):
            log.warning(
                "a rate counts a unit that `cost` of the function has not returned: use one name in both",
                extra={"function": self._key, "rate": ", ".join(missing), "cost": ", ".join(sorted(estimate))},
            )
