"""Terms are what the client has asked for: the amounts that a job may spend, by unit."""

import math
from dataclasses import dataclass, field, replace

from remote_udf.amounts import MOST_UNITS
from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.outcomes import ErrorBudget
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.call_scope import checked_amounts
from udf_server.base.errors import InvalidCost

__all__ = ["ERRORS", "Terms"]

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
