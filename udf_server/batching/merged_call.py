"""MergedCall settles the rows of one common call: it calls the function, retries, halves, and returns the outcomes."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from remote_udf.errors import StreamError
from remote_udf.outcomes import RowError
from udf_server.base.call_scope import NotCalled, current_scope
from udf_server.base.context import BatchContext
from udf_server.base.errors import FunctionBlocked, RowErrors
from udf_server.batching.attempt import Attempt
from udf_server.batching.row_places import RowPlaces
from udf_server.batching.row_queue import Slice
from udf_server.declaring.functions import Function
from udf_server.hosting.executors import Timer
from udf_server.runners.calling import Calling, Returned
from udf_server.runners.isolation import Answer, Call, Wait, advanced, isolate
from udf_server.runners.pool import GRACE_SECONDS
from udf_server.runners.retries import RetryPolicy

__all__ = ["CallOwner", "MergedCall"]


class CallOwner(Protocol):
    """What starts a call's attempts, and hears of its end."""

    clock: Callable[[], float]

    def want_instance(self, call: "MergedCall") -> None:
        """Call `attempt` of the call once an instance is idle."""

    def start(self, call: "MergedCall", evaluate: Callable[[], "Returned | Awaitable[Returned]"]) -> Attempt:
        """Start an attempt, whose answer goes to `answered` of the call."""

    def later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call back after this time. Returns what cancels that."""

    def fail(self, error: BaseException, call: "MergedCall") -> None:
        """End the streams of the call's rows, because of an error of the server."""

    def ended(self, call: "MergedCall") -> None:
        """Every row of the call has an outcome."""


class MergedCall:
    """The rows of one call. Use it on the server's event loop; `_evaluate` runs where the function runs."""

    def __init__(
        self, owner: CallOwner, function: Function, calling: Calling, retry: RetryPolicy, slices: Sequence[Slice],
        timed_out: Callable[[int, str], RowError],
    ) -> None:  # fmt: skip
        self._owner, self._function, self._calling = owner, function, calling
        self._places = RowPlaces(slices, function.result)
        self.slices, self.rows = slices, self._places.rows
        self._timeout = max([piece.part.timeout for piece in slices])
        self._timed_out = timed_out
        self._steps = isolate(self._places.outcomes, retry, self.rows, timed_out)
        self._call: Call | None = None
        self._made: Sequence[int] = ()
        """The rows of the attempt that runs: those of `_call` whose streams have not ended."""
        self.attempt: Attempt | None = None
        self._failure: BaseException | None = None
        self.began = 0.0
        """When the first attempt began; 0.0 before."""
        self._timer: Timer | None = None
        self._over = False

    def advance(self, answer: Answer | None = None) -> None:
        """Continue after an answer; without one, begin."""
        step = advanced(self._steps, answer)
        if self._over:
            return
        self._places.return_settled()
        if step is None or not self._places.left:
            self._end()
        elif isinstance(step, Wait):
            if self._owner.clock() + step.seconds >= self.began + self._timeout:
                self.advance((None, TimeoutError()))
            else:
                self._timer = self._owner.later(step.seconds, functools.partial(self.advance, (None, None)))
        else:
            self._call = step
            self._owner.want_instance(self)

    def run(self) -> bool:
        """Make the attempt that was requested, on an instance. Returns False if it is not needed any more."""
        call = self._call
        if self._over or call is None:
            return False
        made = self._places.wanted(call.rows)
        if made is None:
            self._end()
            return False
        self._made = made
        if not self._made:
            self.advance((Returned(pa.nulls(len(call.rows), self._function.result.type), called=False), None))
            return False
        if call.attempt > 1 and self._failure is not None:
            self._places.retried(self._made, call.attempt - 1, self._failure)
        evaluate = self._evaluate_async if self._function.is_async else self._evaluate
        self.attempt = self._owner.start(self, functools.partial(evaluate, call, self._made))
        return True

    def answered(self, attempt: Attempt, returned: Returned | None, error: BaseException | None) -> None:
        """Continue after an attempt."""
        if attempt is not self.attempt or self._over:
            return
        self.attempt = None
        call = self._call
        assert call is not None
        if isinstance(error, (FunctionBlocked, StreamError)):
            self._owner.fail(error, self)
            self._end()
            return
        if attempt.told or attempt.overdue:
            made = 1
            if isinstance(error, NotCalled):
                made = call.attempt - 1
                self._places.outcomes.not_called(call.attempt)
            self._places.fail(0, self.rows, self._timed_out(made, ""))
            self._end()
            return
        self._failure = error if returned is None else next(iter(returned.failed.values()), None)
        if returned is not None and self._made is not call.rows:
            returned = _spread(returned, self._made, call.rows)
        self.advance((returned, error))
        self._failure = None if self._over else self._failure

    def check(self, now: float) -> None:
        """Time out the rows whose deadline has passed."""
        if self._over:
            return
        if self.began:
            self._places.expire(now, self.began, self._timeout, self._timed_out)
        if self.attempt is not None:
            self.attempt.check(now, (self.began or now) + self._timeout, self._timeout)

    def left(self) -> None:
        """A stream of the call has ended. If it was the last one, nobody wants the outcomes any more."""
        if not self._over and all(piece.part.stream.closed for piece in self.slices):
            attempt = self.attempt
            if attempt is not None and (self._function.is_async or not attempt.began):
                attempt.cancel()
                self.attempt = None
            elif attempt is None and self._timer is None:
                return  # it waits for an instance, and then finds that it is not needed
            if self.attempt is None:
                self._end()
            else:
                self._check_later()

    def _check_later(self) -> None:
        """Check the deadline once: no stream does so any more, and a call that hangs must not keep its instance."""
        if self._timer is not None:
            self._timer.cancel()
        now = self._owner.clock()
        seconds = max((self.began or now) + self._timeout - now, 0.0)
        self._timer = self._owner.later(seconds + GRACE_SECONDS, lambda: self.check(self._owner.clock()))

    def _end(self) -> None:
        self._over = True
        self._steps.close()
        self._call = self._failure = None
        if self._timer is not None:
            self._timer.cancel()
        self._owner.ended(self)

    # The methods below run on the function's threads or its event loop.

    def _result(self, call: Call, rows: Sequence[int]) -> Any:
        """What the function returns: a coroutine if it is asynchronous. Raises RowErrors for rows without a value."""
        self.began = self.began or self._owner.clock()
        self._places.begin()
        arguments = self._calling.arguments(self._places.columns, rows)
        if self._function.waits and not self._function.is_async:
            current_scope.set(replace(current_scope.get(), deadline=self.began + self._timeout))
        if self._function.context_parameter is None:
            return self._function.call(*arguments)
        deadline = self.began + self._timeout
        context = BatchContext.of(
            self.slices[0].part.stream.setup.context, len(rows), call.attempt, deadline, self._owner.clock,
            lambda place: self._places.context(rows[place], call.attempt, deadline), lambda: self._places.shares(rows),
        )  # fmt: skip
        return self._function.call_with(arguments, context)

    def _evaluate(self, call: Call, rows: Sequence[int]) -> Returned:
        try:
            return _owned(self._calling.returned(self._result(call, rows), len(rows)))
        except RowErrors as named:
            return _owned(self._calling.named(named, len(rows)))

    async def _evaluate_async(self, call: Call, rows: Sequence[int]) -> Returned:
        try:
            return _owned(self._calling.returned(await self._result(call, rows), len(rows)))
        except RowErrors as named:
            return _owned(self._calling.named(named, len(rows)))


def _owned(returned: Returned) -> Returned:
    """What was returned, with a copy of the values: the next call begins before they are sent, and may change them."""
    return returned if returned.values is None else returned._replace(values=pa.concat_arrays([returned.values]))


def _spread(returned: Returned, made: Sequence[int], rows: Sequence[int]) -> Returned:
    """What was returned for some rows, as if it was for all of them. Nobody reads the values of the others."""
    places = {row: place for place, row in enumerate(rows)}
    wrong = {places[made[place]]: error for place, error in returned.wrong.items()}
    failed = {places[made[place]]: error for place, error in returned.failed.items()}
    values = returned.values
    if values is not None:
        numbers = {row: number for number, row in enumerate(made)}
        values = values.take(pa.array([numbers.get(row) for row in rows], pa.int64()))
    return Returned(values, wrong, failed, returned.called)
