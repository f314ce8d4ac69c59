"""Tests of Flink's asynchronous operator, as far as they are about calls and not about the operator.

There a call is made per row, with futures that the test completes by hand. Here the same is asked of a
stream of an asynchronous function: how many calls are open, which, and what becomes of a failure.
"""

import asyncio
import concurrent.futures
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import udf_server as udf
from tests.conformance.cases import Case
from tests.conformance.environment import Environment
from tests.conformance.functions.failures import read_failure
from tests.conformance.gist import says
from tests.conformance.report import Result
from tests.conformance.values import same
from udf_server.testing import FunctionEnvironment

__all__ = ["claims", "run"]

_OPERATOR = re.compile(r"^operator test|^harness", re.IGNORECASE)
PATIENCE_SECONDS = 10.0
ABSENCE_SECONDS = 0.05
"""How long nothing may begin that must not."""

ON_RESTORE = Result.not_applicable(
    "rows in flight are in no checkpoint here: a task that starts again sends its input again, from the beginning of "
    "the batch, so there is no queue to restore"
)
ONE_ROW_PER_CALL = Result.not_applicable(
    "one call per row of a key, begun when the one before it ends; here the rows of a key are one segment of one call, "
    "in order"
)


def claims(case: Case) -> bool:
    """A test of an operator, without SQL."""
    return _OPERATOR.match(case.query) is not None or case.expected.kind == "sequencing"


def run(case: Case, environment: Environment) -> Result:
    """In this process, through a stream as a server has it."""
    if len(case.tables) != 1 or len(case.functions) != 1:
        return Result.not_applicable("an operator of Flink with several inputs or functions")
    if re.search(r"restor|snapshot|checkpoint", f"{case.id} {case.description} {case.query}", re.IGNORECASE):
        return ON_RESTORE
    test = _Test(case)
    if case.expected.kind == "sequencing":
        return asyncio.run(test.sequence())
    if case.expected.error is not None:
        return asyncio.run(test.error())
    return Result.not_applicable("the harness of Flink's operator")


class _Test:
    def __init__(self, case: Case) -> None:
        self._case = case
        table = case.tables[0]
        names = [name for name, _ in table.columns]
        self._rows = [values for _, values in table.changes]
        self._inputs = [values[-1] for values in self._rows]
        self._keys = [values[names.index("key")] for values in self._rows] if "key" in names else []
        self._open: list[Any] = []
        self._answers: dict[Any, concurrent.futures.Future[Any]] = {}
        self._begun = 0

    async def sequence(self) -> Result:
        """The steps: calls that are open, answers to them."""
        steps: Sequence[Mapping[str, Any]] = self._case.expected.raw.get("steps") or ()
        if len(set(self._keys)) < len(self._keys):
            return ONE_ROW_PER_CALL
        unknown = {name for step in steps for name in step} - {"given", "open", "release", "complete", "calls_started"}
        if unknown or not steps:
            return Result.not_applicable(
                f"steps of Flink's harness without a counterpart: {', '.join(sorted(unknown))}"
            )
        capacity = int(self._case.config.get("capacity") or len(self._inputs))
        async with FunctionEnvironment() as environment:
            running = asyncio.create_task(environment.run(self._function(), self._inputs, buffer_capacity=capacity))
            try:
                for number, step in enumerate(steps):
                    wrong = await self._step(step, capacity)
                    if wrong:
                        return Result.failed(f"step {number}: {wrong}")
                result = (await running).to_pylist()
            finally:
                running.cancel()
        return self._compared(result)

    async def error(self) -> Result:
        """What becomes of a call that fails or takes too long, and of the rows beside it."""
        words = self._case.functions[0]
        failure = read_failure(words.failure)
        timeout = self._case.config.get("timeout_ms")
        kept = [row[-1] for row in self._case.expected.raw.get("rows_before_failure") or ()]

        @udf.scalar(name=words.name)
        async def call(x: int) -> int:
            if words.failure:
                raise RuntimeError(failure.message)
            if x not in kept:
                await asyncio.Event().wait()
            return x

        options = {"timeout": f"{timeout} ms"} if timeout and not words.failure else {}
        async with FunctionEnvironment() as environment:
            result = await environment.run(call, self._inputs, retry_strategy="none", **options)
        failed = [result.errors.get(place) for place in range(len(self._inputs))]
        values = result.values.to_pylist()
        if [value for value, error in zip(values, failed, strict=True) if error is None] != kept:
            return Result.failed(f"rows {kept} expected beside the failure, found {values}")
        message = next((f"{error.code}: {error.message}" for error in failed if error is not None), "")
        wanted = self._case.expected.error or ""
        if not says(wanted, message) and not ("timeout" in wanted.lower() and "timed out" in message.lower()):
            return Result.failed(f"expected an error like {wanted!r}, found {message!r}")
        return Result.passed("the row's own outcome; that it fails the job is the policy a caller has by default")

    def _function(self) -> Any:
        # It runs on a loop of its own, so what both see is for threads.
        @udf.scalar(name=self._case.functions[0].name)
        async def call(x: int) -> int:
            answer = self._answers[x] = concurrent.futures.Future()
            self._begun += 1
            self._open.append(x)
            return await asyncio.wrap_future(answer)

        return call

    async def _step(self, step: Mapping[str, Any], capacity: int) -> str:
        """What is wrong after a step; nothing as a rule."""
        if "release" in step:
            await self._answer(step["release"], step["release"])
        if "complete" in step and self._open:
            await self._answer(self._open[0], step["complete"])
        if "calls_started" in step and not await self._until(lambda: self._begun == step["calls_started"]):
            return f"{step['calls_started']} calls expected, {self._begun} begun"
        if "open" in step:
            wanted = sorted(step["open"])
            if not await self._until(lambda: sorted(self._open) == wanted):
                return f"open calls {wanted} expected, found {sorted(self._open)}"
            await asyncio.sleep(ABSENCE_SECONDS)
            if sorted(self._open) != wanted or len(self._open) > capacity:
                return f"open calls {wanted} expected, found {sorted(self._open)} later"
        return ""

    async def _answer(self, x: Any, value: Any) -> None:
        await self._until(lambda: x in self._open)
        self._open.remove(x)
        self._answers[x].set_result(value)

    async def _until(self, condition: Callable[[], bool]) -> bool:
        """Whether it becomes true in time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - it changes on another thread
            await asyncio.sleep(0.002)
        return condition()

    def _compared(self, result: list[Any]) -> Result:
        told = self._case.expected.raw.get("results")
        if isinstance(told, Mapping):
            wanted = [told[str(x)] for x in self._inputs]
            if not same(wanted, result):
                return Result.failed(f"results {wanted} expected, found {result}")
        elif result != self._inputs:
            return Result.failed(f"results {self._inputs} expected, found {result}")
        return Result.passed("asked of a stream of an asynchronous function; watermarks are Spark's")
