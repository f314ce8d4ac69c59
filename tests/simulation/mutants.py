"""Planted bugs: each patches one method of the client or the server, and the oracles must find it.

They are applied only here. A mutant that nothing finds shows what the simulation cannot see.
"""

import itertools
import signal
from typing import Any
from unittest import mock

from spark_client.executor.stream import connection
from spark_client.executor.stream.accounts import Accounts
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.chunks import Chunk
from spark_client.executor.stream.connecting import Connector
from spark_client.executor.stream.connection import Connection
from spark_client.executor.stream.in_flight import ChunksInFlight
from spark_client.executor.stream.silence import SilenceWatch
from tests.simulation.drawing import drawn
from tests.simulation.job_mutants import JOB_MUTANTS
from tests.simulation.limit_mutants import LIMIT_MUTANTS
from tests.simulation.mutant import Mutant, nothing, zero
from tests.simulation.scenario import Scenario
from tests.simulation.world import run
from udf_server.batching.attempt import Attempt
from udf_server.batching.dynamic_batcher import Batchers
from udf_server.batching.merged_call import MergedCall
from udf_server.batching.merged_rows import MergedRows
from udf_server.hosting.registry import Catalog
from udf_server.hosting.thread_executor import ThreadExecutor
from udf_server.runners.async_rows import AsyncRows
from udf_server.runners.batches import RowBatch
from udf_server.runners.hosted_call import HostedCall
from udf_server.runners.isolation import Outcomes
from udf_server.runners.outputs import Output
from udf_server.runners.pool import CoroutinePool
from udf_server.runners.retries import RetryPolicy
from udf_server.runners.runner import Runner
from udf_server.runners.threaded_rows import ThreadedRows
from udf_server.runners.vectorized import Vectorized
from udf_server.streams.background import Background, Heartbeats, Outbox

__all__ = ["MOST_SEEDS", "MUTANTS", "found_at"]

MOST_SEEDS = 500
"""Each mutant is found within this number of seeds of both modes."""
MOST_CPU_SECONDS = 30.0


def _last_chunk_forgotten(original: Any) -> Any:
    return lambda self: original(self)[:-1]


def _kept_in_flight(original: Any) -> Any:
    def start_anew(self: Any) -> Any:
        before = self._pending
        rest = original(self)
        self._pending = before
        return rest

    return start_anew


def _all_rows_again(original: Any) -> Any:
    def rest(self: Any) -> Any:
        return Chunk(self.owner, self.rows, self.columns, self.bytes, replays=self.replays + 1, sent_at=self.sent_at)

    return rest


def _values_reversed(original: Any) -> Any:
    return lambda self, rows, values, errors: original(self, rows[::-1].copy(), values, errors)


def _next_row(original: Any) -> Any:
    return lambda self, first_row, *rest: original(self, first_row + (first_row > 0), *rest)


def _without_end(original: Any) -> Any:
    def close(self: Any, *, cancel: bool) -> None:
        requests, self._requests = self._requests, mock.Mock()
        original(self, cancel=cancel)
        self._requests = requests

    return close


def _left_open(original: Any) -> Any:
    def end(self: Any) -> None:
        connection = self._connection
        if not connection.finished:
            connection.send_finish()
            while not (envelope := connection.read()[0]).HasField("finished"):
                pass
            self._check_finished(envelope.finished)
            connection.close(cancel=False)

    return end


def _final(original: Any) -> Any:
    def read(error: Any) -> Any:
        found = original(error)
        found.retryable = False
        return found

    return read


def _every_fifth_lost(original: Any) -> Any:
    counts = [0]

    def emit(self: Any, output: Any) -> None:
        counts[0] += 1
        if counts[0] % 5:
            original(self, output)

    return emit


def _wakes_no_parked(original: Any) -> Any:
    return lambda self: None if self._parked else original(self)


def _errors_of_functions(original: Any) -> Any:
    # Not all errors: a coroutine that a world closes at its end would retry that for ever.
    return lambda self, error: isinstance(error, ValueError) or original(self, error)


def _one_attempt_fewer(original: Any) -> Any:
    return lambda self, error, attempts: original(self, error, attempts + 1)


def _null_instead(original: Any) -> Any:
    def fail(self: Any, index: int, error: Any) -> None:
        self.failed += 1
        self.values[index] = None

    return fail


def _one_row_late(original: Any) -> Any:
    def settle(self: Any, first: int, values: Any, failures: Any, attempts: int) -> None:
        if first and len(values) > 1:
            values = values.take([*range(1, len(values)), 0])
        original(self, first, values, failures, attempts)

    return settle


def _no_notice(original: Any) -> Any:
    def staff(self: Any) -> None:
        if self._idle < len(self._jobs) and self.alive < self._allowed:
            self.alive += 1
            self._threads.start("udf", self._work)

    return staff


def _share_is_all(original: Any) -> Any:
    return lambda self, deadline, servers: 1e6


def _latest(original: Any) -> Any:
    return lambda self, name, version="", **keywords: original(self, name, "", **keywords)


def _whole_timeout(original: Any) -> Any:
    return lambda self, batch: self.options.timeout


def _no_progress(original: Any) -> Any:
    async def watch(self: Any, *arguments: Any) -> None:
        self.progress_seconds = 1e9
        await original(self, *arguments)

    return watch


def _keeps_instance(original: Any) -> Any:
    def cancel(self: Any) -> None:
        self._freed = lambda: None
        original(self)

    return cancel


def _reversed_values(original: Any) -> Any:
    def settle(self: Any, part: Any, rows: Any, values: Any, *rest: Any) -> None:
        original(self, part, rows, values.take([*reversed(range(len(values)))]), *rest)

    return settle


MUTANTS = (
    Mutant("a replay forgets the last chunk", ChunksInFlight, "rest", _last_chunk_forgotten),
    Mutant("a replay sends rows again that were answered", Chunk, "rest", _all_rows_again),
    Mutant("chunks that are sent again stay in flight as well", CallStream, "_start_anew", _kept_in_flight),
    Mutant("the counts of a connection are not reset", Accounts, "start_connection", nothing),
    Mutant("a server that hangs is not noticed", Connection, "check_silence", nothing),
    Mutant("a server that hangs gets the whole time to connect", Connector, "_share", _share_is_all),
    Mutant("a stream gets the latest version of its function", Catalog, "find", _latest),
    Mutant("a refusal that passes is final", connection, "read_error", _final),
    Mutant("a closed connection does not end its requests", Connection, "close", _without_end),
    Mutant("a connection that is lost while its stream moves stays open", CallStream, "_end_connection", _left_open),
    Mutant("a closed connection stays watched", SilenceWatch, "discard", nothing),
    Mutant("unordered values are placed in reverse", ChunksInFlight, "answer_scattered", _values_reversed),
    Mutant("a result is taken for the next row", ChunksInFlight, "answer", _next_row),
    Mutant("the workers of a lost stream go on", AsyncRows, "cancel", nothing),
    Mutant("background tasks outlive their stream", Background, "cancel", nothing),
    Mutant("parked workers are not woken", CoroutinePool, "_wake", _wakes_no_parked),
    Mutant("idle threads are not woken", ThreadExecutor, "_staff", _no_notice),
    Mutant("the next batch of a vectorized function is not started", Vectorized, "_leave", nothing),
    Mutant("deadlines of coroutines are not checked", AsyncRows, "tick", nothing),
    Mutant("deadlines of threads are not checked", ThreadedRows, "tick", nothing),
    Mutant("a deadline begins again after a replay", Runner, "timeout_of", _whole_timeout),
    Mutant("every fifth result is lost", Outbox, "emit", _every_fifth_lost),
    Mutant("no heartbeat is sent", Heartbeats, "watch", _no_progress),
    Mutant("a fatal error is retried", RetryPolicy, "worthwhile", _errors_of_functions),
    Mutant("one attempt too few is made", RetryPolicy, "delay", _one_attempt_fewer),
    Mutant("an error becomes a null", RowBatch, "fail", _null_instead),
    Mutant("after halving, values are one row late", Outcomes, "settle", _one_row_late),
    Mutant("the server counts failed rows as good", Output, "failed", zero),
    Mutant("values of a common call go to other rows of their stream", MergedRows, "settle", _reversed_values),
    Mutant("a common call goes on after its streams were lost", MergedCall, "left", nothing),
    Mutant("deadlines of common calls are not checked", MergedCall, "check", nothing),
    Mutant("calls of many rows that are overdue are not given up", HostedCall, "check", nothing),
    Mutant("a cancelled attempt of a common call keeps its instance", Attempt, "cancel", _keeps_instance),
    Mutant("a common call keeps its instance", Batchers, "freed", nothing),
    *LIMIT_MUTANTS,
    *JOB_MUTANTS,
)


class _Endless(AssertionError):
    """A world takes too much CPU time."""


def _interrupt(number: int, frame: object) -> None:
    raise _Endless(f"more than {MOST_CPU_SECONDS:g} s of CPU time")


def _problem(scenario: Scenario) -> str:
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_SECONDS)
    return run(scenario).problem


def found_at(mutant: Mutant, most_seeds: int = MOST_SEEDS) -> tuple[int, str, str] | None:
    """The number of seeds until an oracle finds it, the mode and what it says; None if none does.

    A seed that fails without the bug as well has not found it.
    """
    before = signal.signal(signal.SIGPROF, _interrupt)
    try:
        for seed, mode in itertools.product(range(most_seeds), ("safety", "liveness")):
            scenario = drawn(seed, mode)
            with mutant.planted():
                problem = _problem(scenario)
            if problem and not _problem(scenario):
                return seed + 1, mode, problem
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
