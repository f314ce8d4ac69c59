"""The time of one attempt: a call that hangs is cancelled, and costs an attempt instead of the row."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from remote_udf.durations import format_seconds
from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from udf_server.base.functions import Function

__all__ = ["AttemptTimeout", "NotCalled", "WaitCancelled", "WaitTimeout", "with_attempt_timeout"]


P = ParamSpec("P")
T = TypeVar("T")


class AttemptTimeout(TimeoutError):
    """An attempt had no result within `attempt-timeout`."""


class NotCalled(BaseException):
    """The time for the call ended while it waited for a guard or a budget, so the call was not made."""

    def __init__(self, message: str = "", *, unavailable: str = "") -> None:
        """`unavailable` says what could not be counted then; empty if the limits allowed no call."""
        super().__init__(message)
        self.unavailable = unavailable

    def outcome(self, made: int, timed_out: Callable[[int], RowError]) -> RowError:
        """The outcome of its rows after `made` calls, by default that of rows that have timed out."""
        if not self.unavailable:
            return timed_out(made)
        return RowError(ErrorCode.BUDGET_UNAVAILABLE, self.unavailable, made, retryable=True)


class WaitTimeout(NotCalled, TimeoutError):
    """The deadline of the rows passed while a thread waited."""


class WaitCancelled(NotCalled, asyncio.CancelledError):
    """A task was cancelled while it waited."""


def with_attempt_timeout(function: Function, seconds: float) -> Function:
    """The function whose calls raise AttemptTimeout after this time. It must be `async def`."""
    return replace(function, call=_in_time(function.call, seconds))


def _in_time(call: Callable[P, Awaitable[T]], seconds: float) -> Callable[P, Awaitable[T]]:
    @functools.wraps(call)
    async def limited(*arguments: P.args, **keywords: P.kwargs) -> T:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await call(*arguments, **keywords)
        except TimeoutError:
            if not limit.expired():
                raise  # the function's own, with its own text
            raise AttemptTimeout(f"the attempt had no result within {format_seconds(seconds)}") from None

    return limited
