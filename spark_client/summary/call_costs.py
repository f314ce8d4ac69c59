"""SessionCosts: what calls of each function have cost in this session, for plans and estimates."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from remote_udf.amounts import add_amounts
from spark_client.base.statistics import TaskReport

__all__ = ["CallCost", "SessionCosts", "amounts_text"]


@dataclass(frozen=True)
class CallCost:
    """What the calls of one function have cost together."""

    rows: int = 0
    """Rows that the function was called for: not those that a cache answered, that a budget refused, or that have a
    null that it skips."""
    seconds: float = 0.0
    """The time for which tasks have waited for these calls, many of which run at the same time."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """By unit, what the function has reported."""

    def minus(self, other: "CallCost") -> "CallCost":
        """What was added since `other`."""
        spent = {unit: amount - other.spent.get(unit, 0.0) for unit, amount in self.spent.items()}
        return CallCost(self.rows - other.rows, self.seconds - other.seconds, spent)

    def of_a_row(self) -> "CallCost":
        """The mean of a row."""
        rows = max(self.rows, 1)
        return CallCost(1, self.seconds / rows, {unit: amount / rows for unit, amount in self.spent.items()})

    def __str__(self) -> str:
        return amounts_text({**self.spent, "s of its task": self.seconds})


class SessionCosts:
    """Adds up the reports of tasks, a number of sums per function. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._costs: dict[str, CallCost] = {}

    def take(self, report: TaskReport) -> None:
        """Add the report of a task that has ended. Each attempt of a task counts, because each has its cost."""
        found = report.statistics
        rows = found.ok + found.failed - found.calls_saved - found.uncalled
        if rows <= 0:
            return
        with self._lock:
            known = self._costs.get(report.function, CallCost())
            spent = dict(known.spent)
            add_amounts(spent, found.spent)
            self._costs[report.function] = CallCost(known.rows + rows, known.seconds + found.waiting_seconds, spent)

    def of(self, function: str) -> CallCost:
        """The cost of all calls of a function, `name@version`, so far."""
        with self._lock:
            return self._costs.get(function, CallCost())


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Amounts by unit, such as `12 tokens, 0.0096 usd`; `nothing` without units."""
    return ", ".join(f"{amount:,.6g} {unit}" for unit, amount in sorted(amounts.items())) or "nothing"
