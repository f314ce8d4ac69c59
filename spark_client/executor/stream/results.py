"""Reads Result messages: the outcomes of rows, and what they count."""

from remote_udf.amounts import add_amounts
from remote_udf.arrow import read_columns
from remote_udf.errors import ProtocolViolation
from remote_udf.outcomes import read_errors
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.statistics import Statistics
from spark_client.executor.stream.chunks import Answer
from spark_client.executor.stream.connection import Connection
from spark_client.executor.stream.pending import Pending

__all__ = ["add_counts", "read_result"]


def read_result(
    result: pb.Result, data: memoryview | None, connection: Connection, pending: Pending
) -> tuple[list[Answer], int]:
    """The outcomes of a result that is not a part of a value, and the number of rows that failed.

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
        return pending.answer(result.first_row, values, errors, result.parts), len(errors)
    return pending.answer_scattered(columns[0].to_numpy(), values, errors), len(errors)


def add_counts(counts: pb.StreamCounts, statistics: Statistics, result: pb.Result, failed: int, size: int) -> None:
    """Add what a result of this many bytes counts, of which `failed` rows failed, to those of its connection."""
    ok = result.rows - failed - result.skipped
    counts.rows_ok += ok
    counts.rows_failed += failed
    counts.rows_skipped += result.skipped
    counts.calls += result.calls
    counts.retries += result.retries
    statistics.rows += result.rows
    statistics.ok += ok
    statistics.failed += failed
    statistics.skipped += result.skipped
    statistics.calls += result.calls
    statistics.retries += result.retries
    statistics.cache_hits += result.cache_hits
    statistics.cache_misses += result.cache_misses
    statistics.cache_shared += result.cache_shared
    statistics.bytes_in += size
    if result.spent:
        add_amounts(statistics.spent, result.spent)
