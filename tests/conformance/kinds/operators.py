"""Tests of Flink's asynchronous operator, as far as they are about calls and not about the operator.

Flink makes a call per row, with futures that the test completes. Here the same is required of a
stream of an asynchronous function: the number of open calls, which ones, and the effect of a failure.
"""

import asyncio
import concurrent.futures
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import udf_server as udf
from tests.conformance.binding import Bound
from tests.conformance.cases import Case, FunctionWords, Table
from tests.conformance.environment import Environment
from tests.conformance.functions.expressions import NotUnderstood, Scope, read_expression
from tests.conformance.functions.failures import read_failure
from tests.conformance.observation import Emitted, Failure, Observation, Run
from udf_server.testing import FunctionEnvironment

__all__ = ["claims", "observe"]

_OPERATOR = re.compile(r"^operator test|^harness\b", re.IGNORECASE)
_RETURNS = re.compile(r"\breturns (.+?)(?= (?:when|once|after|as soon|if)\b|[;,.]|$)", re.IGNORECASE)
PATIENCE_SECONDS = 10.0
ABSENCE_SECONDS = 0.05
"""How long nothing may begin that must not."""


def claims(case: Case) -> bool:
    """Whether it is a test of an operator, without SQL. The case defines its function; no file needs to have it."""
    return len(case.functions) == 1 and (_OPERATOR.match(case.query) is not None or case.kind == "sequencing")


def observe(case: Case, environment: Environment, bound: Sequence[Bound]) -> Observation:
    """Runs the case in this process, through a stream like that of a server."""
    seen = environment.observation(case, bound)
    test = _Test(case, seen)
    if case.kind == "sequencing":
        asyncio.run(test.sequence())
    elif case.error is not None:
        asyncio.run(test.error())
    else:
        asyncio.run(test.rows())
    return seen


def _behaviour(words: FunctionWords) -> Callable[[Any], Any]:
    """Returns what the words say that the function returns of its argument; else the argument."""
    match = _RETURNS.search(words.behaviour)
    names = tuple(name for name, _ in words.arguments) or ("x",)
    try:
        expression = read_expression(match[1], names) if match is not None else None
    except NotUnderstood:
        expression = None
    return (lambda x: x) if expression is None else lambda x: expression(Scope({names[0]: x}))


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]


class _Test:
    """Calls one function, whose answers the case gives, through a stream of calls."""

    def __init__(self, case: Case, seen: Observation) -> None:
        self._case, self._seen = case, seen
        table = case.tables[0] if case.tables else Table("inputs", (), ())
        names = [name for name, _ in table.columns]
        self._rows = [values for _, values in table.changes]
        self._inputs = [values[-1] for values in self._rows]
        self._keys = [values[names.index("key")] for values in self._rows] if "key" in names else []
        self._open: list[Any] = []
        self._answers: dict[Any, concurrent.futures.Future[Any]] = {}
        self._value = _behaviour(case.functions[0])
        self._begun = 0
        self._most = 0

    async def sequence(self) -> None:
        """Records open and started calls after each step, then the results."""
        steps: Sequence[Mapping[str, Any]] = self._case.expected.get("steps") or ()
        if len(set(self._keys)) < len(self._keys):
            self._seen.refusal = "rows of a key are one segment of one call, and not one call after the other"
            return
        capacity = int(self._case.config.get("capacity") or len(self._inputs))
        found = []
        async with FunctionEnvironment() as environment:
            running = asyncio.create_task(environment.run(self._function(), self._inputs, buffer_capacity=capacity))
            try:
                found = [await self._step(step) for step in steps]
                if all(answer.done() and answer.exception() is None for answer in self._answers.values()):
                    result = (await running).to_pylist()
                    results = dict(zip(map(str, self._inputs), result, strict=True))
                    answers = [self._answers[x].result() for x in self._inputs]
                    if isinstance(self._case.expected.get("results"), Mapping):
                        self._seen.found["expected.results"] = results
                    elif result != answers:
                        self._seen.contradictions.append(f"results {answers} expected, found {result}")
            finally:
                running.cancel()
        self._seen.found["expected.steps"] = found
        self._seen.found["expected.max_open_calls"] = self._most

    async def error(self) -> None:
        """Records the outcome of a call that fails or takes too long, and of the rows beside it."""
        words = self._case.functions[0]
        failure = read_failure(words.failure)
        timeout = self._case.config.get("timeout_ms")
        kept = [row[-1] for row in self._case.expected.get("rows_before_failure") or ()]

        @udf.scalar(name=words.name)
        async def call(x: int) -> int:
            if words.failure:
                raise RuntimeError(failure.message)
            if x not in kept:
                await asyncio.Event().wait()
            return self._value(x)

        options: dict[str, Any] = {"timeout": f"{timeout} ms"} if timeout and not words.failure else {}
        async with FunctionEnvironment() as environment:
            result = await environment.run(call, self._inputs, retry_strategy="none", **options)
        failed = [result.errors.get(place) for place in range(len(self._inputs))]
        values = result.values.to_pylist()
        fine = [[value] for value, error in zip(values, failed, strict=True) if error is None]
        if "rows_before_failure" in self._case.expected:
            self._seen.found["expected.rows_before_failure"] = fine
        message = next((f"{error.code}: {error.message}" for error in failed if error is not None), "")
        if message:
            self._seen.runs.append(Run("operator", failure=Failure(message, planning=False)))

    async def rows(self) -> None:
        """Records the function's answers to the rows, which arrive together, in order."""

        @udf.scalar(name=self._case.functions[0].name)
        async def call(x: int) -> int:
            return self._value(x)

        async with FunctionEnvironment() as environment:
            result = await environment.run(call, self._inputs)
        self._seen.runs.append(Run("operator", rows=[Emitted((value,)) for value in result.to_pylist()]))

    def _function(self) -> Any:
        # The function runs on its own loop, so shared objects must be thread-safe.
        @udf.scalar(name=self._case.functions[0].name)
        async def call(x: int) -> int:
            answer = self._answers[x] = concurrent.futures.Future()
            self._begun += 1
            self._open.append(x)
            self._most = max(self._most, len(self._open))
            return await asyncio.wrap_future(answer)

        return call

    async def _step(self, step: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the state after a step, under the names that the step has."""
        for x in _listed(step.get("release")):
            await self._answer(x, self._value(x))
        for x, value in self._told(step.get("complete")):
            await self._answer(x, value)
        for x, message in self._told(step.get("fail")):
            await self._answer(x, RuntimeError(message))
        found: dict[str, Any] = {}
        if "calls_started" in step:
            await self._until(lambda: self._begun == step["calls_started"])
            await asyncio.sleep(ABSENCE_SECONDS)
            found["calls_started"] = self._begun
        if "open" in step:
            await self._until(lambda: sorted(self._open) == sorted(step["open"]))
            await asyncio.sleep(ABSENCE_SECONDS)
            found["open"] = sorted(self._open)
        return found

    async def _answer(self, x: Any, value: Any) -> None:
        await self._until(lambda: x in self._open)
        if x in self._open:
            self._open.remove(x)
            answer = self._answers[x]
            answer.set_exception(value) if isinstance(value, Exception) else answer.set_result(value)

    def _told(self, given: Any) -> list[tuple[Any, Any]]:
        """Returns calls and their answers; answers without calls are those of the calls that have been open longest."""
        if isinstance(given, Mapping):
            known = {str(x): x for x in self._inputs}
            return [(known[str(x)], value) for x, value in given.items()]
        return list(zip(list(self._open), _listed(given), strict=False))

    async def _until(self, condition: Callable[[], bool]) -> bool:
        """Waits for a condition; returns whether it became true in time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - it changes on another thread
            await asyncio.sleep(0.002)
        return condition()
