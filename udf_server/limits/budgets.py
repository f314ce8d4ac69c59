"""Budgets are those of the jobs and callers whose calls this process makes."""

import functools
import hashlib
import time
from collections.abc import Callable, Iterator

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.v1 import message_pb2 as pb
from udf_server.limits.budget import Budget
from udf_server.limits.budget_costs import Terms
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledgers import LocalLedgers

__all__ = ["Budgets"]

MOST_JOBS = 1_000
"""Number of jobs with a budget that this process serves at a time. Each may send claims of its own. Those that are idle
give way to others."""
IDLE_SECONDS = 60.0
"""A budget is kept for this time after the last stream of its job, which may have another stage."""
_JOB = "budget:"


class DailyBudget:
    """The budget of a caller for each day. `Budgets` changes it at midnight, UTC."""

    def __init__(self, caller: str, terms: Terms) -> None:
        self.caller, self.terms, self.day = caller, terms, ""
        self.today: Budget
        """The budget from which calls take now."""


class Budgets:
    """The budgets of jobs, by caller and the random id of the driver, and those of callers. Use it on the server's
    event loop.
    """

    def __init__(
        self, ledgers: Coordinator | LocalLedgers, identity: str, *, fail_open: bool = False,
        clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
        most_jobs: int = MOST_JOBS,
    ) -> None:  # fmt: skip
        """`ledgers` are those in this process, or what sends claims to others.

        `identity` is what servers have in common that count together. `wall` is the time in seconds since 1970.
        """
        self.identity, self._most_jobs = identity, most_jobs
        self._ledgers, self._fail_open, self._clock, self._wall = ledgers, fail_open, clock, wall
        self._jobs: dict[str, Budget] = {}
        """The budgets that this process shares, by name: of jobs, and of callers for a day."""
        self._daily: dict[str, DailyBudget] = {}

    def join(self, caller: str, request: pb.Budget, job: str = "") -> Budget:
        """The budget for a stream of a job, which `job` names for people. Call `leave` when the stream has ended.

        Raises StreamError if it is malformed, if the job has another budget, or if there are too many jobs.
        """
        terms = Terms.from_proto(request)
        name = _JOB + hashlib.sha256(f"{caller}\n{request.job}".encode()).hexdigest()
        budget = self._jobs.get(name)
        if budget is None:
            self._make_room(caller)
            title = f"{job}, session {request.job[:8]}" if job else f"session {request.job[:8]}"
            budget = self._add(name, terms, "this job", caller, title)
        elif budget.terms != terms:
            raise StreamError(
                ErrorKind.PROTOCOL, ErrorCode.INVALID_OPTION,
                f"the job has the budget {budget.terms}; this stream has {terms}",
            )  # fmt: skip
        budget.streams += 1
        return budget

    def _make_room(self, caller: str) -> None:
        """Forget idle jobs if there are too many. Raises StreamError if that is not enough.

        A caller gets no more jobs than others would have left, so that no caller can have all of them.
        """
        jobs = [each for each in self._jobs.values() if each.name.startswith(_JOB)]
        idle = sorted((each for each in jobs if each.is_idle), key=lambda each: each.idle_since)
        while idle and len(jobs) >= self._most_jobs:
            jobs.remove(idle[0])
            self._forget(idle.pop(0))
        busy = [each for each in jobs if not each.is_idle]
        mine = sum(each.caller == caller for each in busy)
        if mine >= self._most_jobs - len(busy):
            raise StreamError(
                ErrorKind.WORKER, ErrorCode.OVERLOADED,
                f"{len(busy)} jobs with a budget are being served, {mine} of them of this caller; {self._most_jobs} "
                "are possible, and a caller gets no more than others would have left", retryable=True,
            )  # fmt: skip

    def daily(self, caller: str, terms: Terms) -> DailyBudget:
        """The budget of a caller, which lasts as long as this object. The terms of a caller do not change."""
        if caller not in self._daily:
            self._daily[caller] = daily = DailyBudget(caller, terms)
            self._change_day(daily)
        return self._daily[caller]

    def used(self) -> Iterator[tuple[str, str, float]]:
        """Caller, unit and the part of the day's budget that was spent on all servers, of callers with a budget."""
        for daily in self._daily.values():
            for unit, spent, most in daily.today.amounts():
                yield daily.caller, unit, spent / most

    def kept(self) -> list[Budget]:
        """The budgets that this process serves. Safe to call from any thread."""
        return list(self._jobs.values())

    def _add(self, name: str, terms: Terms, whose: str, caller: str, title: str) -> Budget:
        ledgers = self._ledgers
        budget = self._jobs[name] = Budget(
            name, terms, whose=whose, caller=caller, title=title, fail_open=self._fail_open, clock=self._clock,
            answers=functools.partial(ledgers.answer, name) if isinstance(ledgers, LocalLedgers) else None,
        )  # fmt: skip
        if isinstance(ledgers, Coordinator):
            ledgers.add(budget)
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
        if before is not None:
            self.leave(before)
            before.look()  # calls that wait for it take from the new one

    def leave(self, budget: Budget) -> None:
        """Note that a stream of the job has ended."""
        budget.streams -= 1
        budget.idle_since = self._clock()

    def sweep(self) -> None:
        """Begin a new day of callers, and forget what no stream has used for some time. Call about once a second."""
        for daily in self._daily.values():
            self._change_day(daily)
        now = self._clock()
        for budget in list(self._jobs.values()):
            budget.look()
            if budget.is_idle and now - budget.idle_since > IDLE_SECONDS:
                self._forget(budget)

    def _forget(self, budget: Budget) -> None:
        """Return what was leased. The ledger knows what was spent, should the job go on."""
        del self._jobs[budget.name]
        if isinstance(self._ledgers, LocalLedgers):
            budget.leave()
        else:
            self._ledgers.remove(budget)
