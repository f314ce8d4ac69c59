"""The Terms of a budget, and what it holds for each RunningCall by what earlier calls of the Spender have spent."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from remote_udf.amounts import MOST_UNITS
from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.outcomes import ErrorBudget
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.call_scope import Spending, checked_amounts
from udf_server.base.errors import InvalidCost
from udf_server.base.fairness import Party
from udf_server.limits.settings import CALLS

__all__ = ["ERRORS", "GRACE_SECONDS", "RunningCall", "Spender", "Terms"]

ERRORS = "errors"
"""The unit of failed rows, which is no amount of calls."""
JOB_LENGTH = 200


@dataclass(frozen=True)
class Terms:
    """The budget of a job, or of a caller for a day."""

    amounts: tuple[tuple[str, float], ...]
    """Maximum amounts by unit, without errors."""
    errors: ErrorBudget = field(default_factory=ErrorBudget)
    """How many rows may fail."""

    @classmethod
    def from_proto(cls, message: pb.Budget) -> "Terms":
        """Raises StreamError if an amount is not a number of more than 0, or if there are too many."""
        try:
            if not 0 < len(message.job) <= JOB_LENGTH:
                raise InvalidCost(
                    f"budget: the id of the job has {len(message.job)} characters; expected 1 to {JOB_LENGTH}"
                )
            share = message.error_share
            if not 0 <= share <= 1 or math.isnan(share):
                raise InvalidCost(f"budget: {share!r} is not a share of errors from 0 to 1")
            terms = cls.of(dict(message.amounts), "budget")
            return replace(terms, errors=replace(terms.errors, share=share or None))
        except InvalidCost as error:
            raise StreamError(ErrorKind.PROTOCOL, ErrorCode.INVALID_OPTION, str(error)) from None

    @classmethod
    def of(cls, given: object, source: str) -> "Terms":
        """The terms of amounts by unit. Raises InvalidCost, which names the source."""
        amounts = checked_amounts(given, source)
        if len(amounts) > MOST_UNITS:
            raise InvalidCost(f"{source}: {len(amounts)} units; at most {MOST_UNITS} are possible")
        for unit, amount in amounts.items():
            if not amount:
                raise InvalidCost(f"{source}: {unit}=0 is not a number of more than 0")
        errors = ErrorBudget(amounts.pop(ERRORS, None))
        return cls(tuple(sorted(amounts.items())), errors)

    def __str__(self) -> str:
        parts = [f"{amount:.15g} {unit}" for unit, amount in self.amounts]
        most, share = self.errors.most, self.errors.share
        parts += [f"{most:.15g} errors"] if most is not None else []
        parts += [f"{100 * share:.15g} % errors"] if share is not None else []
        return ", ".join(parts)


FAILED_CALLS = 10
"""This number of calls that have failed and spent nothing says as much as one good call that has spent nothing."""
LATEST = 100
"""Number of latest calls from which the cost of the next one is inferred."""
SURE_CALLS, CAUTION = 30, 4.0
"""Of fewer calls than that, more is held for a call than any has cost: by this number over that of the calls."""


class Spender:
    """The calls of one function for one job. The budget uses it with its lock held.

    A call reports what it spends while it runs. Until it has ended, the budget holds an estimate for it: the function's
    own (`cost`), else what earlier calls have cost. A call that spends nothing of a unit does not tell what others
    spend. So until one has reported the unit, at most as many calls run at once as have ended before, and one more: the
    first one is alone. After that, if a call is the only one, the mean is held for it, and otherwise the most that one
    of the latest calls has cost: many calls that run at once could exceed the budget together. What is not spent is
    free again when the call ends.
    """

    def __init__(self, units: Sequence[str]) -> None:
        self._units = units
        self._mean = [0.0] * len(units)
        self._most, self._most_before = [0.0] * len(units), [0.0] * len(units)
        """The most that a call has cost: of the latest calls that have spent the unit, and of as many before them."""
        self._known = [0] * len(units)
        """By unit: number of calls that have spent it."""
        self._good = self._failed = 0
        """Number of calls that have ended: those that were good or have spent anything, and the others."""
        self.running = 0
        """Number of calls that run and may end. The budget counts them."""

    def costs(self, estimate: Mapping[str, float]) -> Sequence[float] | None:
        """What to hold for a call of each unit; None if that is unknown and the call has to wait.

        `estimate` is the function's own.
        """
        if self.running > self._good + self._failed // FAILED_CALLS and any(
            unit != CALLS and unit not in estimate and not known
            for unit, known in zip(self._units, self._known, strict=True)
        ):
            return None
        return [
            1.0 if unit == CALLS else estimate[unit] if unit in estimate else self._inferred(index)
            for index, unit in enumerate(self._units)
        ]

    def _inferred(self, index: int) -> float:
        known = self._known[index]
        if not self.running or not known:
            return self._mean[index]
        caution = 1.0 if known >= SURE_CALLS else 1.0 + CAUTION / known
        return max(self._most[index], self._most_before[index]) * caution

    def ended(self, spent: Mapping[str, float], *, good: bool) -> None:
        """Note what a call has spent. One that failed and has spent nothing says little about the others."""
        if good or any(spent.values()):
            self._good += 1
        else:
            self._failed += 1
        for index, unit in enumerate(self._units):
            amount = spent.get(unit, 0.0)
            if unit == CALLS or not amount:
                continue
            if self._known[index] % LATEST == 0:
                self._most[index], self._most_before[index] = 0.0, self._most[index]
            self._known[index] += 1
            self._mean[index] += (amount - self._mean[index]) / min(self._known[index], LATEST)
            self._most[index] = max(self._most[index], amount)


GRACE_SECONDS = 1.0
"""How long a call may go on after its row has timed out, or its stream has ended, until nothing waits for it."""


@dataclass(slots=True, eq=False)
class RunningCall:
    """What one call takes of a budget, which uses it with its lock held.

    It may run forever, on a thread that its stream has written off.
    """

    estimate: Mapping[str, float]
    """What the function says that the call is going to cost."""
    party: Party
    """Its stream."""
    timeout: float
    """Seconds after which its row has an outcome without it."""
    spending: Spending
    """Where the call adds what it spends, for all of its budgets."""
    spender: Spender | None = None
    """That of the budget and the function, while it holds what it has taken."""
    costs: Sequence[float] = ()
    """What it has taken, by unit."""
    until: float = math.inf
    """When it is written off."""
    lost: Mapping[str, float] | None = None
    """What was counted as spent when it was written off, by unit."""
