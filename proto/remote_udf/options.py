"""Tables of the options of calls: their names, values, defaults and meaning. `effective_options` reads them.

The names are those of FLIP-400 ("Public Interfaces", table of options). Names have underscores in Python and hyphens
elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from remote_udf.option_tables import Option, option, table_of
from remote_udf.option_values import (
    choice,
    count,
    duration,
    duration_or_p95,
    duration_or_zero,
    fraction,
    names,
    path,
    size,
    switch,
    text,
)

__all__ = [
    "AGGREGATE_OPTIONS",
    "AT_MOST",
    "CALLER_OPTIONS",
    "CAPS",
    "DEFAULT_CAPACITY",
    "HOSTED_OPTIONS",
    "PLAN_OPTIONS",
    "REMOVED_OPTIONS",
    "SCALAR_OPTIONS",
    "STREAM_OPTIONS",
    "AggregatePlan",
    "CacheMode",
    "CacheScope",
    "ErrorPolicy",
    "OnError",
    "OutputMode",
    "PlanOptions",
    "RetryStrategy",
    "StreamOptions",
]


DEFAULT_CAPACITY = 100
"""Rows in flight of a function that is called row by row, unless `buffer-capacity` is set."""


class OutputMode(StrEnum):
    """Whether rows are emitted in the order of the input."""

    ORDERED = "ordered"
    UNORDERED = "unordered"
    """Flink's ALLOW_UNORDERED: rows may be emitted as they complete, if the kind of call permits it."""


class RetryStrategy(StrEnum):
    """How long to wait between attempts."""

    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    EXPONENTIAL_DELAY = "exponential-delay"
    """The bound doubles, with full jitter: each delay is drawn uniformly between zero and the bound."""


class CacheMode(StrEnum):
    """What a call does with the outcomes that the server's cache has."""

    USE = "use"
    REFRESH = "refresh"
    """Every distinct row is called, and its outcome replaces the one in the cache."""


class CacheScope(StrEnum):
    """Who gets an outcome that was kept."""

    CALLER = "caller"
    ALL = "all"


class OnError(StrEnum):
    """What happens to a row that failed."""

    FAIL = "fail"
    NULL = "null"
    COLUMN = "column"
    DEAD_LETTER = "dead-letter"


class AggregatePlan(StrEnum):
    """How Spark gathers the rows of a group."""

    AUTO = "auto"
    ONE_TASK = "one-task"
    SORTED = "sorted"
    PARTIAL = "partial"


class Options:
    """A table of options of calls. An object has effective options, parsed. Durations are in seconds."""

    def to_text(self) -> dict[str, str]:
        """The options that have a value, as text by hyphenated name, as in the message Opened."""
        values = ((name, known, getattr(self, known.attribute)) for name, known in table_of(type(self)).items())
        return {name: known.format(value) for name, known, value in values if value is not None}


@dataclass(frozen=True)
class _RowOptions(Options):
    """How rows are called."""

    buffer_capacity: int | None = option(
        count(1), None,
        "Maximum number of rows in flight per Spark task: calls that have started and not yet ended. A row that waits "
        f"for a retry counts. Default: {DEFAULT_CAPACITY} rows; for a vectorized function 1 batch, or 4 if it is "
        "`async`.",
    )  # fmt: skip
    timeout: float = option(
        duration, 180.0,
        "Total time of a row, from its turn among the rows in flight. It includes queueing, every attempt and every "
        "delay.",
    )  # fmt: skip
    attempt_timeout: float | None = option(
        duration, None,
        "Time of one attempt of an `async def` function. After it the call is cancelled and counts as a "
        "`TimeoutError`, which `retry-on` has by default. Waiting for guards does not count. Default: only `timeout` "
        "ends a call.",
    )  # fmt: skip
    output_mode: OutputMode = option(
        choice(OutputMode, {"allow-unordered": OutputMode.UNORDERED}), OutputMode.ORDERED,
        "`ordered`: rows are emitted in the order of the input. `unordered`: as they complete, in whole-row execution.",
    )  # fmt: skip


@dataclass(frozen=True)
class _RetryOptions(Options):
    """Which calls are repeated, and when."""

    retry_strategy: RetryStrategy = option(
        choice(RetryStrategy, {"no-retry": RetryStrategy.NONE}), RetryStrategy.FIXED_DELAY,
        "`none`, `fixed-delay` or `exponential-delay` (doubling, full jitter).",
    )  # fmt: skip
    fixed_delay: float = option(duration, 0.1, "Delay between attempts with `fixed-delay`.")
    initial_delay: float = option(duration, 0.1, "Upper bound of the first delay with `exponential-delay`.")
    max_delay: float = option(duration, 10.0, "Upper bound of every delay with `exponential-delay`.")
    max_attempts: int = option(
        count(1), 3,
        "Maximum number of calls for one row, including the first. Flink counts retries: its N is N + 1 here.",
    )  # fmt: skip
    retry_on: tuple[str, ...] = option(
        names, ("RetryableError", "TimeoutError"),
        "Names of the exception classes that are retried, with their subclasses. `Exception` retries everything.",
    )  # fmt: skip


@dataclass(frozen=True)
class ScalarOptions(_RetryOptions, _RowOptions):
    """The effective options of one call, parsed. Durations are in seconds.

    A cache_ttl of None or 0.0 means that the outcomes of the call are not kept.
    """

    retry_empty: bool = option(
        switch, False,
        "Whether a result that is null, or an array without a value, is retried as an error is. The result of the last "
        "attempt stands. For functions that are called row by row.",
    )  # fmt: skip
    batch_rows: int = option(
        count(1), 65_536, "Maximum number of rows in one message. A vectorized function never gets more rows at once."
    )
    cache_ttl: float | None = option(
        duration_or_zero, None,
        "How long the server keeps the value of a row for equal arguments; `0 s` disables the cache. Default: no "
        "cache.",
    )  # fmt: skip
    cache_key: str | None = option(
        text, None,
        "A text that is part of the key of every row, such as the name of a model. Values with another key are not "
        "used.",
    )  # fmt: skip
    cache_scope: CacheScope | None = option(
        choice(CacheScope), None,
        "Who gets a value that was kept: the same `caller`, or `all`. Default: `caller` if callers authenticate, else "
        "`all`.",
    )  # fmt: skip
    cache_mode: CacheMode = option(
        choice(CacheMode), CacheMode.USE,
        "`use` the values that were kept, or `refresh` them: every row is called, unless an equal one is in flight, "
        "and its value is kept.",
    )  # fmt: skip
    cache_errors: float = option(
        duration_or_zero, 0.0,
        "How long the server keeps the error of a row that is not retryable. By default errors are not kept.",
    )  # fmt: skip
    cache_timeout: float = option(
        duration, 0.5, "Maximum time that a look-up in the cache may delay a message. After it, its rows are called."
    )
    cache_required: bool = option(
        switch, False,
        "Whether rows wait while a shared cache is unavailable, or another server calls an equal row, and fail after "
        "their `timeout`, instead of being called, so that nothing is paid twice.",
    )  # fmt: skip


@dataclass(frozen=True)
class HostedOptions(Options):
    """The effective options of all calls of a function on a server, parsed. Durations are in seconds."""

    max_queue_delay: float | None = option(
        duration_or_zero, None,
        "Rows of all streams meet in common calls of a vectorized or list function, and a row waits at most this time "
        "for others. Default: each stream has separate calls.",
    )  # fmt: skip
    batch_bytes: int = option(
        size, 64 << 20, "Maximum bytes of the arguments of a common call. `batch-rows` is the maximum of its rows."
    )
    instances: int = option(
        count(1), 1,
        "Maximum number of common calls at once per server process: on threads, or for `async def` on its event loop. "
        "Each call of a class whose `eval` is a `def` has an object of the class for itself.",
    )  # fmt: skip
    mix_callers: bool = option(switch, True, "Whether a common call may have rows of several callers.")
    hedge_after: float | str | None = option(
        duration_or_p95, None,
        "If a call of an idempotent `async def` function takes longer than this, a second one is sent, and the first "
        "answer counts. `p95`: longer than 95 % of the latest calls. Default: no second calls.",
    )  # fmt: skip
    hedge_share: float = option(
        fraction, 0.05, "Maximum share of the calls for which a second one is sent, such as '5%'."
    )


@dataclass(frozen=True)
class _BundleOptions(Options):
    """How rows are put into bundles."""

    size: int = option(
        count(1), 4_000_000,
        "Maximum number of rows in one bundle, over all its keys (FLIP-491). Results do not depend on it.",
    )  # fmt: skip
    allow_latency: float = option(
        duration, 10.0, "How long rows may wait for their bundle to fill, if the input is slower than that (FLIP-491)."
    )
    timeout: float = option(
        duration, 180.0, "Total time of a bundle, including queueing, every attempt and every delay."
    )


@dataclass(frozen=True)
class AggregateOptions(_RetryOptions, _BundleOptions):
    """The effective options of an aggregate function, parsed. Durations are in seconds."""

    def for_segments(self) -> ScalarOptions:
        """The options with which segments are called: as rows of a vectorized function, one bundle per call."""
        retries = {known.attribute: getattr(self, known.attribute) for known in table_of(_RetryOptions).values()}
        return ScalarOptions(batch_rows=self.size, timeout=self.timeout, **retries)


@dataclass(frozen=True)
class ErrorPolicy(Options):
    """What happens to rows that fail."""

    on_error: OnError = option(
        choice(OnError), OnError.FAIL,
        "What happens to a failed row: `fail` the job, `null`, an error `column`, or a `dead-letter` file.",
    )  # fmt: skip
    dead_letter: str | None = option(path, None, "Directory (path or URI) of the Parquet files of failed rows.")
    max_errors: int | None = option(
        count(0), None, "Maximum number of failed rows of a task. With more, the job fails."
    )
    max_error_rate: float | None = option(
        fraction, None,
        "Maximum share of failed rows of a task, such as '5%'. It is checked from 100 rows on and at the end.",
    )  # fmt: skip


@dataclass(frozen=True)
class StreamOptions(Options):
    """The options of a process table function on streams."""

    buckets: int = option(
        count(1), 64,
        "Number of buckets into which keys are hashed on a stream. The keys of a bucket are sent to the server "
        "together. A checkpoint keeps its initial number.",
    )  # fmt: skip


@dataclass(frozen=True)
class PlanOptions(Options):
    """The options by which an aggregation is planned."""

    aggregate_plan: AggregatePlan = option(
        choice(AggregatePlan), AggregatePlan.AUTO,
        "How rows are gathered: all in `one-task`; `sorted` by key after a shuffle; or as `partial` results, which are "
        "merged after the shuffle. `auto` follows the size of the input. Results do not depend on it.",
    )  # fmt: skip


SCALAR_OPTIONS: Mapping[str, Option] = table_of(ScalarOptions)
"""Options of scalar functions that the server applies. They may be set at every level."""
HOSTED_OPTIONS: Mapping[str, Option] = table_of(HostedOptions)
"""Options of scalar functions that concern all their calls on a server. Only the declaration and the server's
configuration may set them."""
REMOVED_OPTIONS: Mapping[str, str] = {
    "hedge-elsewhere": "rows of a slow message are not sent to another server any more; `async def` functions have "
    "hedge-after",
}
"""Hosted options of earlier versions, which have no effect, and what to do instead."""
AGGREGATE_OPTIONS: Mapping[str, Option] = table_of(AggregateOptions)
"""Options of aggregate functions that the server applies. They may be set at every level; bundles are retried."""
CALLER_OPTIONS: Mapping[str, Option] = table_of(ErrorPolicy)
"""Options that the client applies: callers choose what happens to errors. They may be set at call and session."""
STREAM_OPTIONS: Mapping[str, Option] = table_of(StreamOptions)
"""Options that the client applies to process table functions on streams. They may be set at call and session."""
AT_MOST = "at-most."
"""Begins the name of a cap, such as `at-most.timeout`."""
_UNSET_NUMBERS = ("buffer-capacity", "attempt-timeout", "cache-ttl")
CAPS: Mapping[str, Option] = {
    f"{AT_MOST}{name}": replace(option, name=f"{AT_MOST}{name}")
    for name, option in {**SCALAR_OPTIONS, **AGGREGATE_OPTIONS}.items()
    if isinstance(option.default, (int, float)) or name in _UNSET_NUMBERS
}
"""The largest values of options that are numbers, wherever they are set. Only the server's configuration has caps."""
PLAN_OPTIONS: Mapping[str, Option] = table_of(PlanOptions)
"""Options that the client applies to aggregations. They may be set at call and session."""
