"""Reads Result messages: the outcomes of rows, and what they count."""

from collections.abc import Collection

from remote_udf.amounts import add_amounts
from remote_udf.arrow import read_columns
from remote_udf.errors import ErrorCode, ProtocolViolation
from remote_udf.outcomes import RowError, read_errors
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.statistics import Statistics
from spark_client.executor.stream.chunks import Answer
from spark_client.executor.stream.connection import Connection
from spark_client.executor.stream.pending import ChunksInFlight

__all__ = ["add_counts", "read_result"]


def read_result(
    result: pb.Result, data: memoryview | None, connection: Connection, pending: ChunksInFlight
) -> tuple[list[Answer], Collection[RowError]]:
    """The outcomes of a result that is not a part of a value, and the errors of the rows that failed.

    Raises ProtocolViolation if it is malformed or answers rows that are not pending.
    """
    if data is None:
        raise ProtocolViolation("a result without data")
    columns = read_columns(data, connection.schema, result.rows)
    values = columns[-1]
    errors = read_errors(result.errors) if result.errors else {}
    if errors and not 0 <= min(errors) <= max(errors) < result.rows:
        raise ProtocolViolation(f"an error for row {max(errors)} of a result of {result.rows} rows")
    if connection.ordered:
        return pending.answer(result.first_row, values, errors, result.parts), errors.values()
    return pending.answer_scattered(columns[0].to_numpy(), values, errors), errors.values()


def add_counts(
    counts: pb.StreamCounts, statistics: Statistics, result: pb.Result, errors: Collection[RowError], size: int
) -> None:
    """Add what a result of this many bytes counts, whose failed rows have these errors, to those of its connection."""
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
