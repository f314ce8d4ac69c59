"""Budgets are those of the jobs and callers whose calls this process makes."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.v1 import message_pb2 as pb
from udf_server.budgets.job_budget import JobBudget
from udf_server.budgets.terms import Terms
from udf_server.coordination.coordinator import Coordinator

__all__ = ["Budgets"]

MOST_JOBS = 1_000
"""Number of jobs with a budget that this process serves at a time. Each sends claims of its own."""
IDLE_SECONDS = 60.0
"""A budget is kept for this time after the last stream of its job, which may have another stage."""


class DailyBudget:
    """The budget of a caller for each day. `Budgets` changes it at midnight, UTC."""

    def __init__(self, caller: str, terms: Terms) -> None:
        self.caller, self.terms, self.day = caller, terms, ""
        self.today: JobBudget
        """The budget from which calls take now."""


class Budgets:
    """The budgets of jobs, by caller and the random id of the driver, and those of callers. Use it on the server's
    event loop.
    """

    def __init__(
        self, coordinator: Coordinator, identity: str, *, fail_open: bool = False,
        clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """`identity` is what servers have in common that count together. `wall` is the time in seconds since 1970."""
        self.identity = identity
        self._coordinator, self._fail_open, self._clock, self._wall = coordinator, fail_open, clock, wall
        self._jobs: dict[str, JobBudget] = {}
        """The budgets that this process shares, by name: of jobs, and of callers for a day."""
        self._daily: dict[str, DailyBudget] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def join(self, caller: str, request: pb.Budget, job: str = "") -> JobBudget:
        """The budget for a stream of a job, which `job` names for people. Call `leave` when the stream has ended.

        Raises StreamError if it is malformed, if the job has another budget, or if there are too many jobs.
        """
        terms = Terms.from_proto(request)
        name = "budget:" + hashlib.sha256(f"{caller}\n{request.job}".encode()).hexdigest()
        budget = self._jobs.get(name)
        if budget is None:
            if len(self._jobs) >= MOST_JOBS:
                raise StreamError(
                    ErrorKind.WORKER, ErrorCode.OVERLOADED,
                    f"{len(self._jobs)} jobs with a budget are being served; {MOST_JOBS} are possible", retryable=True,
                )  # fmt: skip
            title = f"{job}, session {request.job[:8]}" if job else f"session {request.job[:8]}"
            budget = self._add(name, terms, "this job", caller, title)
        elif budget.terms != terms:
            raise StreamError(
                ErrorKind.PROTOCOL, ErrorCode.INVALID_OPTION,
                f"the job has the budget {budget.terms}; this stream has {terms}",
            )  # fmt: skip
        budget.streams += 1
        return budget

    def daily(self, caller: str, terms: Terms) -> DailyBudget:
        """The budget of a caller, which lasts as long as this object. The terms of a caller do not change."""
        if caller not in self._daily:
            self._daily[caller] = daily = DailyBudget(caller, terms)
            self._change_day(daily)
        return self._daily[caller]

    def used(self) -> Iterator[tuple[str, str, float]]:
        """Caller, unit and the part of the day's budget that was spent on all servers, of callers with a budget."""
        for daily in self._daily.values():
            for unit, part in daily.today.used():
                yield daily.caller, unit, part

    def kept(self) -> list[JobBudget]:
        """The budgets that this process serves. Safe to call from any thread."""
        return list(self._jobs.values())

    def _add(self, name: str, terms: Terms, whose: str, caller: str, title: str) -> JobBudget:
        budget = self._jobs[name] = JobBudget(
            name, terms, whose=whose, caller=caller, title=title, fail_open=self._fail_open, clock=self._clock
        )
        self._coordinator.add(budget)
        return budget

    def _change_day(self, daily: DailyBudget) -> None:
        """Have calls that begin from now on take from the budget of this day."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self._wall()))
        if day == daily.day:
            return
        before = daily.today if daily.day else None
        name = "day:" + hashlib.sha256(f"{day}\n{daily.caller}".encode()).hexdigest()
        whose = f"caller {daily.caller!r} for {day} (UTC)"
        known = self._jobs.get(name)
        daily.today = known or self._add(name, daily.terms, whose, daily.caller, f"{day} (UTC)")
        daily.day = day
        daily.today.streams += 1
        daily.today.hand_over(False)  # the clock may have been set back
        if before is not None:
            self.leave(before)
            before.hand_over(True)

    def leave(self, budget: JobBudget) -> None:
        """Note that a stream of the job has ended."""
        budget.streams -= 1
        budget.idle_since = self._clock()

    def sweep(self) -> None:
        """Begin a new day of callers, and forget what no stream has used for some time. Call about once a second."""
        for daily in self._daily.values():
            self._change_day(daily)
        now = self._clock()
        for name, budget in list(self._jobs.items()):
            if not budget.streams and not budget.runs_calls and now - budget.idle_since > IDLE_SECONDS:
                del self._jobs[name]
                task = asyncio.create_task(self._coordinator.remove(budget))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
