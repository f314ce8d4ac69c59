"""The time of one attempt: a call that hangs is cancelled, and costs an attempt instead of the row."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from remote_udf.durations import format_seconds
from udf_server.base.functions import Function

__all__ = [
    "AttemptTimeout", "NotCalled", "WaitCancelled", "WaitTimeout", "call_begins", "is_decided", "limited",
    "with_attempt_timeout",
]  # fmt: skip

is_decided: ContextVar[Callable[[], bool]] = ContextVar("is_decided", default=lambda: False)
"""Whether another call for the same rows has given their outcome, so that this one is cancelled but has not failed."""

call_begins: ContextVar[Callable[[], object] | None] = ContextVar("call_begins", default=None)
"""What is called when the guards of a function let a call of this task pass; None if nothing is."""

_seconds: ContextVar[float | None] = ContextVar("attempt_seconds", default=None)
"""The `attempt-timeout` of the calls of a task whose function has guards."""


class AttemptTimeout(TimeoutError):
    """An attempt had no result within `attempt-timeout`."""


class NotCalled(BaseException):
    """The time for the call ended while it waited for a guard or a budget, so the call was not made."""


class WaitTimeout(NotCalled, TimeoutError):
    """The deadline of the rows passed while a thread waited."""


class WaitCancelled(NotCalled, asyncio.CancelledError):
    """A task was cancelled while it waited."""


def with_attempt_timeout(function: Function, seconds: float) -> Function:
    """The function whose calls raise AttemptTimeout after this time. It must be `async def`.

    If the function has guards, the time begins when they let the call pass.
    """
    call = function.call
    if function.guarded:

        @functools.wraps(call)
        async def limited_by_guard(*arguments: Any, **keywords: Any) -> Any:
            _seconds.set(seconds)
            return await call(*arguments, **keywords)

        return replace(function, call=limited_by_guard)

    @functools.wraps(call)
    async def limited_call(*arguments: Any, **keywords: Any) -> Any:
        return await _within(seconds, call(*arguments, **keywords))

    return replace(function, call=limited_call)


def limited(called: Awaitable[Any]) -> Awaitable[Any]:
    """Note that guards let a call pass. Returns the call, within the `attempt-timeout` of this task if it has one."""
    if (begins := call_begins.get()) is not None:
        begins()
    seconds = _seconds.get()
    return called if seconds is None else _within(seconds, called)


async def _within(seconds: float, called: Awaitable[Any]) -> Any:
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await called
    except TimeoutError:
        if not limit.expired():
            raise  # the function's own, with its own text
        raise AttemptTimeout(f"the attempt had no result within {format_seconds(seconds)}") from None
