"""Statistics: what a call did in one task, counted per message and not per row, and how such statistics add up."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Reporter", "Statistics", "TaskReport", "bucket_of", "latency"]

SMALLEST_SECONDS = 0.0001
BUCKETS_PER_DOUBLING = 4
"""Latencies are counted in buckets that grow by 19 percent each, so a quantile is right to 9."""
MOST_BUCKETS = 120
"""The last bucket begins at 29 hours."""


@dataclass(slots=True)
class Statistics:
    """Of one call: in one stream, or summed over many. Times are in seconds.

    `rows` have an outcome: `ok`, `failed` or `skipped` (null among the arguments of a function that skips them).
    """

    streams: int = 0
    rows: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    calls: int = 0
    """Calls of the function: of a row, of a batch if it is vectorized, of a bundle."""
    retries: int = 0
    """Those of them that repeat one that failed."""
    batches: int = 0
    """Messages answered in full."""
    replays: int = 0
    """Times that a server was lost and its rows were sent again."""
    reconnects: int = 0
    """Times that a stream reconnected elsewhere with nothing in flight, to share work with new servers."""
    bytes_out: int = 0
    bytes_in: int = 0
    task_seconds: float = 0.0
    """From the opening of the stream to its end."""
    spark_seconds: float = 0.0
    """Of these, in Spark: it makes input or takes output."""
    waiting_seconds: float = 0.0
    """Of these, waiting for the server."""
    batch_seconds: float = 0.0
    """From the sending of a batch until its last row was answered; batches overlap."""
    queue_seconds: float = 0.0
    """Of these, before the function was first called."""
    function_seconds: float = 0.0
    """Of these, from there until the results were ready."""
    latencies: dict[int, int] = field(default_factory=dict)
    """Bucket to the number of batches."""

    @property
    def wire_seconds(self) -> float:
        """What is left of the batches' time: network, encoding, and results until the task takes them up."""
        return max(self.batch_seconds - self.queue_seconds - self.function_seconds, 0.0)

    def answered(self, seconds: float) -> None:
        """A batch was answered in full, so long after it was sent."""
        self.batches += 1
        self.batch_seconds += seconds
        bucket = bucket_of(seconds)
        self.latencies[bucket] = self.latencies.get(bucket, 0) + 1

    def add(self, other: "Statistics") -> None:
        """Adds the statistics of another stream."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for bucket, count in other.latencies.items():
            self.latencies[bucket] = self.latencies.get(bucket, 0) + count

    def quantile(self, share: float) -> float | None:
        """The latency in seconds that this share of the batches did not exceed; None without batches."""
        left = share * sum(self.latencies.values())
        for bucket, count in sorted(self.latencies.items()):
            left -= count
            if left <= 0:
                return latency(bucket)
        return None


_SUMS = tuple(each.name for each in dataclasses.fields(Statistics) if each.name != "latencies")


def bucket_of(seconds: float) -> int:
    """The bucket of a latency; the first has all up to SMALLEST_SECONDS."""
    if seconds <= SMALLEST_SECONDS:
        return 0
    return min(math.ceil(math.log2(seconds / SMALLEST_SECONDS) * BUCKETS_PER_DOUBLING), MOST_BUCKETS)


def latency(bucket: int) -> float:
    """The middle of a bucket, in seconds."""
    return SMALLEST_SECONDS * 2.0 ** ((bucket - 0.5) / BUCKETS_PER_DOUBLING)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The statistics of one call in one attempt at a task."""

    function: str
    operation_id: str
    on_error: str
    stage: int
    partition: int
    task_attempt: int
    micro_batch: int
    statistics: Statistics


class Reporter(Protocol):
    """What a plan carries along for its tasks to report to."""

    def report(self, report: TaskReport) -> None:
        """Called once per stream, at its end."""
        ...
