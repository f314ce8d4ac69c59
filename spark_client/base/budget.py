"""SessionBudget is what the calls of one remote session may spend, over all its queries, tasks and servers."""

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from remote_udf.amounts import MOST_UNITS, UNIT_BYTES, is_unit
from remote_udf.errors import InvalidOption
from remote_udf.option_values import fraction, percent
from remote_udf.v1 import message_pb2 as pb

__all__ = ["OverBudget", "SessionBudget"]

OverBudget = Literal["fail", "on-error"]
"""What happens to the calls that are left once a budget is spent."""
ERRORS = "errors"


@dataclass(frozen=True)
class SessionBudget:
    """Maximum amounts by unit. `of` makes it."""

    amounts: Mapping[str, float]
    error_share: float | None
    """Maximum share of rows that fail."""
    fails: bool
    """Whether the query fails; otherwise rows that are not called follow their `on_error`."""
    job: str = field(default_factory=lambda: uuid.uuid4().hex, repr=False)
    """A random id, under which servers count."""
    ledger: str = field(default="", repr=False)
    """Where the servers that `connect` has met count budgets; empty if they have not said so."""

    @classmethod
    def of(cls, given: Mapping[str, object], over: OverBudget) -> "SessionBudget":
        """The budget that a user has written. Raises InvalidOption."""
        if not isinstance(given, Mapping) or not given:
            raise InvalidOption(f"budget={given!r} is not a mapping with units, such as {{'usd': 10, 'errors': '1 %'}}")
        if over not in get_args(OverBudget):
            raise InvalidOption(f"over_budget={over!r} is not one of {', '.join(get_args(OverBudget))}")
        if len(given) > MOST_UNITS:
            raise InvalidOption(f"budget: {len(given)} units; at most {MOST_UNITS} are possible")
        amounts, error_share = {}, None
        for unit, amount in given.items():
            if not isinstance(unit, str) or not is_unit(unit):
                raise InvalidOption(f"budget: {unit!r} is not a unit: write its name, of at most {UNIT_BYTES} bytes")
            if unit == ERRORS and isinstance(amount, str):
                error_share = _share(amount)
            else:
                amounts[unit] = _amount(unit, amount)
        return cls(amounts, error_share, over == "fail")

    def to_proto(self) -> pb.Budget:
        return pb.Budget(job=self.job, amounts=self.amounts, error_share=self.error_share or 0.0)

    def __str__(self) -> str:
        parts = [f"{amount:,.6g} {unit}" for unit, amount in self.amounts.items()]
        return ", ".join(parts + ([f"{percent(self.error_share)} errors"] if self.error_share else []))


def _share(text: str) -> float:
    found = fraction(text.replace(" ", ""))
    if not found:
        raise InvalidOption(f"budget: errors={text!r} is not more than 0")
    return found


def _amount(unit: str, amount: object) -> float:
    if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not 0 < amount < math.inf:
        alternative = ", or a share such as '1 %'" if unit == ERRORS else ""
        raise InvalidOption(f"budget: {unit}={amount!r} is not a number of more than 0{alternative}")
    return float(amount)
