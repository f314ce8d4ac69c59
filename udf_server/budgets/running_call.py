"""RunningCall is a call that has begun for a job with a budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from udf_server.base.call_scope import current_scope
from udf_server.base.fairness import Party
from udf_server.base.spending import Spending
from udf_server.budgets.spender import Spender

__all__ = ["RunningCall"]

GRACE_SECONDS = 1.0
"""How long a call may go on after its row has timed out, or its stream has ended, until nothing waits for it."""


@dataclass(eq=False)
class RunningCall:
    """The budget uses it with its lock held. A call may run forever, on a thread that its stream has written off."""

    spender: Spender
    costs: Sequence[float]
    """What it has taken."""
    party: Party
    """Its stream."""
    timeout: float
    """Seconds after which its row has an outcome without it."""
    spending: Spending = field(default_factory=lambda: current_scope.get().spending or Spending())
    """That of the same call for another budget, if there is one: a call reports once what it spends."""
    until: float = math.inf
    lost: Sequence[float] | None = None
    """What was counted as spent when it was written off, by unit."""

    def is_written_off(self, now: float) -> bool:
        """Whether nothing waits for it any more."""
        if self.party.closed:
            self.until = min(self.until, now + GRACE_SECONDS)
        return now > self.until

    def begins(self, now: float) -> None:
        self.until = now + self.timeout + GRACE_SECONDS
