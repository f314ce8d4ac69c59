"""Accounts counts what a stream does, for the statistics of the job, its span and a comparison with the server."""

from collections.abc import Callable, Collection

from remote_udf.amounts import add_amounts
from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from remote_udf.spans import NO_SPAN, Span
from remote_udf.threads import Threads
from remote_udf.tracing import flush_spans
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.calls import ScalarCall
from spark_client.base.errors import AccountingMismatch
from spark_client.base.statistics import Statistics, TaskReport
from spark_client.executor.stream.task import TaskInfo

__all__ = ["Accounts"]


class Accounts:
    """`statistics` has the counts of the whole stream, `counts` those of its current connection."""

    def __init__(
        self, call: ScalarCall, task: TaskInfo, span: Span, clock: Callable[[], float], threads: Threads
    ) -> None:
        self.statistics = Statistics(streams=1)
        self.counts = pb.StreamCounts()
        self._call = call
        self._task = task
        self._span = span
        self._clock = clock
        self._threads = threads
        self._began = clock()
        self._reported = False

    def received(self, result: pb.Result, errors: Collection[RowError], size: int) -> None:
        """Count a result message with the errors of its failed rows and this many bytes."""
        counts, statistics = self.counts, self.statistics
        failed = len(errors)
        ok = result.rows - failed - result.skipped
        counts.rows_ok += ok
        counts.rows_failed += failed
        counts.rows_skipped += result.skipped
        counts.calls += result.calls
        counts.retries += result.retries
        statistics.rows += result.rows
        statistics.ok += ok
        statistics.failed += failed
        if errors:
            statistics.uncalled += sum(not error.attempts for error in errors)
            statistics.over_budget += sum(error.code is ErrorCode.BUDGET_SPENT for error in errors)
        statistics.skipped += result.skipped
        statistics.calls += result.calls
        statistics.retries += result.retries
        statistics.cache_hits += result.cache_hits
        statistics.cache_misses += result.cache_misses
        statistics.cache_shared += result.cache_shared
        statistics.bytes_in += size
        if result.spent:
            add_amounts(statistics.spent, result.spent)

    def refused(self, rows: int) -> None:
        """Count rows that fail in the client and are not sent to a server."""
        self.statistics.rows += rows
        self.statistics.failed += rows
        self.statistics.uncalled += rows

    def start_connection(self) -> None:
        """Reset `counts`, because the server counts per connection."""
        self.counts = pb.StreamCounts()

    def finish_connection(self, finished: pb.Finished, rows_sent: int, unanswered: int) -> None:
        """Add the server's times. Raises AccountingMismatch if its counts differ from those of the client."""
        ours = self.counts
        ours.rows_in = rows_sent
        if unanswered or ours != finished.counts:
            raise AccountingMismatch(
                f"function {self._call.spec.key}: rows do not add up; sent and received here: {_shown(ours)}, "
                f"unanswered {unanswered}; the server says: {_shown(finished.counts)}"
            )
        self.statistics.queue_seconds += finished.times.queue.ToNanoseconds() / 1e9
        self.statistics.function_seconds += finished.times.function.ToNanoseconds() / 1e9

    def report(self, spark_seconds: float) -> None:
        """Pass the statistics to the plan's reporter. Only the first call has an effect."""
        reporter, call, task = self._call.config.reporter, self._call, self._task
        if reporter is None or self._reported:
            return
        self._reported = True
        statistics = self.statistics
        statistics.task_seconds, statistics.spark_seconds = self._clock() - self._began, spark_seconds
        reporter.report(
            TaskReport(
                call.spec.key, call.operation_id, call.policy.on_error.value, task.stage, task.partition,
                task.task_attempt, task.micro_batch, statistics,
            )
        )  # fmt: skip

    def end_span(self, error: str = "") -> None:
        """End the span with the statistics so far."""
        if self._span is NO_SPAN:
            return
        statistics = self.statistics
        self._span.set(
            rows=statistics.rows, ok=statistics.ok, failed=statistics.failed, skipped=statistics.skipped,
            retries=statistics.retries, batches=statistics.batches, replays=statistics.replays,
            reconnects=statistics.reconnects,
        )  # fmt: skip
        self._span.end(error)
        # Spark ends its workers without notice, so spans are flushed now, on a thread that nothing waits for.
        self._threads.start("remote-udf-spans", flush_spans)


def _shown(counts: pb.StreamCounts) -> str:
    return (
        f"in {counts.rows_in}, ok {counts.rows_ok}, failed {counts.rows_failed}, skipped {counts.rows_skipped}, "
        f"calls {counts.calls}, retries {counts.retries}"
    )
