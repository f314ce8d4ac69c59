"""CallLimit is what a call of a function must pass, and `within` the wrapper that has it do so."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from udf_server.base.functions import Function
from udf_server.limits.queue import NewWaiter, Steps, TaskWaiter, ThreadWaiter, on_loop, on_thread

__all__ = ["CallLimit", "within"]

HeldT = TypeVar("HeldT")


class CallLimit(ABC, Generic[HeldT]):
    """What the calls of one function take, on tasks and on threads alike."""

    what: str
    """What is waited for, in messages."""
    clock: Callable[[], float]

    @abstractmethod
    def take_at_once(self, arguments: Sequence[Any]) -> HeldT | None:
        """Take what a call needs, if it need not wait. Nearly every call can, so it must be cheap."""

    @abstractmethod
    def take(self, arguments: Sequence[Any], make: NewWaiter) -> Steps[HeldT]:
        """The steps of a call that may have to wait. They raise a refusal, or what is thrown in."""

    @abstractmethod
    def worked(self, held: HeldT, result: Any) -> None:
        """Return what a call held that has returned."""

    @abstractmethod
    def failed(self, held: HeldT, error: BaseException, arguments: Sequence[Any]) -> None:
        """Return what a call held that has raised an exception."""


def within(function: Function, limit: CallLimit[Any]) -> Function:
    """The function whose calls pass the limit first."""
    call, take_at_once, take, worked, failed = (
        function.call, limit.take_at_once, limit.take, limit.worked, limit.failed
    )  # fmt: skip

    async def limited(*arguments: Any, **keywords: Any) -> Any:
        if (held := take_at_once(arguments)) is None:
            held = await on_loop(take(arguments, TaskWaiter))
        try:
            result = await call(*arguments, **keywords)
        except BaseException as error:
            failed(held, error, arguments)
            raise
        worked(held, result)
        return result

    def limited_on_thread(*arguments: Any, **keywords: Any) -> Any:
        if (held := take_at_once(arguments)) is None:
            held = on_thread(take(arguments, ThreadWaiter), limit.clock, limit.what)
        try:
            result = call(*arguments, **keywords)
        except BaseException as error:
            failed(held, error, arguments)
            raise
        worked(held, result)
        return result

    wrapped = limited if function.is_async else limited_on_thread
    return replace(function, call=functools.wraps(call)(wrapped), guarded=True)
