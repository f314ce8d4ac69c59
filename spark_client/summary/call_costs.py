"""CallCost: what calls of a function have cost, for plans and estimates."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CallCost", "amounts_text"]


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


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Amounts by unit, such as `12 tokens, 0.0096 usd`; `nothing` without units."""
    return ", ".join(f"{amount:,.6g} {unit}" for unit, amount in sorted(amounts.items())) or "nothing"
