"""Budgets are those of the jobs whose calls this process makes."""

import asyncio
import hashlib
import time
from collections.abc import Callable

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


class Budgets:
    """The budgets of jobs, by caller and the random id of the driver. Use it on the server's event loop."""

    def __init__(
        self, coordinator: Coordinator, identity: str, *, fail_open: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`identity` is what servers have in common that count together."""
        self.identity = identity
        self._coordinator, self._fail_open, self._clock = coordinator, fail_open, clock
        self._jobs: dict[str, JobBudget] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def join(self, caller: str, request: pb.Budget) -> JobBudget:
        """The budget for a stream of a job. Call `leave` when the stream has ended.

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
            budget = self._jobs[name] = JobBudget(name, terms, fail_open=self._fail_open, clock=self._clock)
            self._coordinator.add(budget)
        elif budget.terms != terms:
            raise StreamError(
                ErrorKind.PROTOCOL, ErrorCode.INVALID_OPTION,
                f"the job has the budget {budget.terms}; this stream has {terms}",
            )  # fmt: skip
        budget.streams += 1
        return budget

    def leave(self, budget: JobBudget) -> None:
        """Note that a stream of the job has ended."""
        budget.streams -= 1
        budget.idle_since = self._clock()

    def sweep(self) -> None:
        """Forget the budgets of jobs that have had no stream for some time. Call about once a second."""
        now = self._clock()
        for name, budget in list(self._jobs.items()):
            if not budget.streams and now - budget.idle_since > IDLE_SECONDS:
                del self._jobs[name]
                task = asyncio.create_task(self._coordinator.remove(budget))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
