"""CallScope is what the server knows of the call that runs: whose it is, how long it may wait, what it spends."""

import contextvars
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from udf_server.base.fairness import ANYONE, Party
from udf_server.base.spending import Spending, StreamSpending, checked_amounts

__all__ = ["NO_CALL", "CallScope", "Race", "current_scope", "spend"]


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

    def counting(self, spending: Spending) -> "CallScope":
        """The scope of the same call, which adds what it spends to `spending`."""
        return CallScope(self.party, self.deadline, spending, self.race, self.taken)


NO_CALL = CallScope()
"""For code outside of a call. A thread returns to it, because it must not keep an ended stream in memory."""
current_scope: contextvars.ContextVar[CallScope] = contextvars.ContextVar("current_scope", default=NO_CALL)


def spend(source: str, amounts: dict[str, float], streams: Mapping[StreamSpending, float]) -> None:
    """Add amounts to what the current call has spent, and to its streams by their shares of it.

    Raises InvalidCost, which names the source.
    """
    checked = checked_amounts(amounts, f"{source}: spend")
    if (spending := current_scope.get().spending) is not None:
        spending.add(checked)
    for stream, share in streams.items():
        stream.add({unit: amount * share for unit, amount in checked.items()})
