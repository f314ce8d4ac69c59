"""Statistics of calls, their sums and costs, which tasks count per message and not per row."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from remote_udf.amounts import add_amounts

__all__ = ["CallCost", "Reporter", "Statistics", "TaskReport", "amounts_text", "bucket_of", "latency"]

SMALLEST_SECONDS = 0.0001
BUCKETS_PER_DOUBLING = 4
"""Each latency bucket is 19 percent larger than the previous one, so a quantile has an error of at most 9 percent."""
MOST_BUCKETS = 120
"""The last bucket begins at 29 hours."""


@dataclass(slots=True)
class Statistics:
    """Statistics of one call: in one stream, or summed over many streams. Times are in seconds.

    `rows` counts rows with an outcome: `ok`, `failed` or `skipped` (an argument is null, and the function skips nulls).
    """

    streams: int = 0
    rows: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    uncalled: int = 0
    """Failed rows for which the function was not called."""
    over_budget: int = 0
    """Failed rows that were not called, or not again, because the budget is spent."""
    calls: int = 0
    """Calls of the function: for a row, for a batch if it is vectorized, or for a bundle."""
    retries: int = 0
    """Calls that repeat a failed call."""
    cache_hits: int = 0
    """Rows that the server's cache answered."""
    cache_misses: int = 0
    """Rows of a call with a cache that had to be called."""
    cache_shared: int = 0
    """Rows that got the outcome of an equal row whose call was running."""
    spent: dict[str, float] = field(default_factory=dict)
    """What calls have spent, by unit, as the functions have reported it."""
    batches: int = 0
    """Messages of which every row was answered."""
    replays: int = 0
    """How often a server was lost and its rows were sent again."""
    reconnects: int = 0
    """How often a stream without rows in flight reconnected, to a server that had less to do or because one drained."""
    bytes_out: int = 0
    bytes_in: int = 0
    task_seconds: float = 0.0
    """The time from the opening of the stream to its end."""
    spark_seconds: float = 0.0
    """The part of `task_seconds` in which Spark produced input or consumed output."""
    waiting_seconds: float = 0.0
    """The part of `task_seconds` in which the task waited for the server."""
    batch_seconds: float = 0.0
    """The time from the sending of a batch until its last row was answered; batches overlap."""
    queue_seconds: float = 0.0
    """The part of `batch_seconds` before the function was first called."""
    function_seconds: float = 0.0
    """The part of `batch_seconds` from the first call of the function until the results were ready."""
    lowered: dict[str, str] = field(default_factory=dict)
    """Options of the call that a cap of the server lowered, and their values in force."""
    latencies: dict[int, int] = field(default_factory=dict)
    """The number of batches in each bucket."""

    @property
    def calls_saved(self) -> int:
        """Rows for which the function was not called because of the cache."""
        return self.cache_hits + self.cache_shared

    @property
    def wire_seconds(self) -> float:
        """The rest of `batch_seconds`: network, encoding, and the time until the task reads the results."""
        return max(self.batch_seconds - self.queue_seconds - self.function_seconds, 0.0)

    def answered(self, seconds: float) -> None:
        """Count a batch that was fully answered `seconds` after it was sent."""
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
        add_amounts(self.spent, other.spent)
        self.lowered |= other.lowered

    def quantile(self, share: float) -> float | None:
        """The latency in seconds that `share` (0 to 1) of the batches did not exceed; None without batches."""
        left = share * sum(self.latencies.values())
        for bucket, count in sorted(self.latencies.items()):
            left -= count
            if left <= 0:
                return latency(bucket)
        return None


_SUMS = tuple(
    each.name for each in dataclasses.fields(Statistics) if each.name not in ("latencies", "lowered", "spent")
)


def bucket_of(seconds: float) -> int:
    """The bucket of a latency; the first bucket has all latencies up to SMALLEST_SECONDS."""
    if seconds <= SMALLEST_SECONDS:
        return 0
    return min(math.ceil(math.log2(seconds / SMALLEST_SECONDS) * BUCKETS_PER_DOUBLING), MOST_BUCKETS)


def latency(bucket: int) -> float:
    """The latency in the middle of a bucket, in seconds."""
    return SMALLEST_SECONDS * 2.0 ** ((bucket - 0.5) / BUCKETS_PER_DOUBLING)


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The statistics of one call in one attempt of a task."""

    function: str
    operation_id: str
    on_error: str
    stage: int
    partition: int
    task_attempt: int
    micro_batch: int
    statistics: Statistics


class Reporter(Protocol):
    """Receives the reports of tasks. It is part of the plan that Spark sends to them."""

    def report(self, report: TaskReport) -> None:
        """Receive a report. It is called once per stream, at its end."""
        ...


@dataclass(frozen=True)
class CallCost:
    """What the calls of one function have cost together."""

    rows: int = 0
    """Rows that the function was called for: not those that a cache answered, that a budget refused, or that have a
    null that it skips."""
    seconds: float = 0.0
    """The time for which tasks have waited for these calls, many of which run at the same time."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """By unit, what the function has reported."""

    def minus(self, other: "CallCost") -> "CallCost":
        """What was added since `other`."""
        spent = {unit: amount - other.spent.get(unit, 0.0) for unit, amount in self.spent.items()}
        return CallCost(self.rows - other.rows, self.seconds - other.seconds, spent)

    def of_a_row(self) -> "CallCost":
        """The mean of a row."""
        rows = max(self.rows, 1)
        return CallCost(1, self.seconds / rows, {unit: amount / rows for unit, amount in self.spent.items()})

    def __str__(self) -> str:
        return amounts_text({**self.spent, "s of its task": self.seconds})


def amounts_text(amounts: Mapping[str, float]) -> str:
    """Amounts by unit, such as `12 tokens, 0.0096 usd`; `nothing` without units."""
    return ", ".join(f"{amount:,.6g} {unit}" for unit, amount in sorted(amounts.items())) or "nothing"
