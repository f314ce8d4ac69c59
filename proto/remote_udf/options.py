"""Options of calls: their names, values and defaults. `effective_options` makes the options of a call of them.

The names are those of FLIP-400 ("Public Interfaces", table of options). Names have underscores in Python and hyphens
elsewhere.
"""

from collections.abc import Mapping
from enum import StrEnum

from remote_udf.durations import format_seconds
from remote_udf.option_values import (
    P95,
    Option,
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
    "CALLER_OPTIONS",
    "DEFAULT_CAPACITY",
    "HOSTED_OPTIONS",
    "REMOVED_OPTIONS",
    "SCALAR_OPTIONS",
    "STREAM_OPTIONS",
    "CacheMode",
    "CacheScope",
    "OnError",
    "OutputMode",
    "RetryStrategy",
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


_ENUM = str
_SCALAR = (
    Option(
        "buffer-capacity", count(1), str, None,
        "Maximum number of rows in flight per Spark task: calls that have started and not yet ended. A row that waits "
        f"for a retry counts. Default: {DEFAULT_CAPACITY} rows; for a vectorized function 1 batch, or 4 if it is "
        "`async`.",
    ),
    Option(
        "timeout", duration, format_seconds, 180.0,
        "Total time of a row, from its turn among the rows in flight. It includes queueing, every attempt and every "
        "delay.",
    ),
    Option(
        "attempt-timeout", duration, format_seconds, None,
        "Time of one attempt of an `async def` function. After it the call is cancelled and counts as a "
        "`TimeoutError`, which `retry-on` has by default. Waiting for guards does not count. Default: only `timeout` "
        "ends a call.",
    ),
    Option(
        "output-mode", choice(OutputMode, {"allow-unordered": OutputMode.UNORDERED}), _ENUM, OutputMode.ORDERED,
        "`ordered`: rows are emitted in the order of the input. `unordered`: as they complete, in whole-row execution.",
    ),
    Option(
        "retry-strategy", choice(RetryStrategy, {"no-retry": RetryStrategy.NONE}), _ENUM, RetryStrategy.FIXED_DELAY,
        "`none`, `fixed-delay` or `exponential-delay` (doubling, full jitter).",
    ),
    Option("fixed-delay", duration, format_seconds, 0.1, "Delay between attempts with `fixed-delay`."),
    Option("initial-delay", duration, format_seconds, 0.1, "Upper bound of the first delay with `exponential-delay`."),
    Option("max-delay", duration, format_seconds, 10.0, "Upper bound of every delay with `exponential-delay`."),
    Option(
        "max-attempts", count(1), str, 3,
        "Maximum number of calls for one row, including the first. Flink counts retries: its N is N + 1 here.",
    ),
    Option(
        "retry-on", names, ",".join, ("RetryableError", "TimeoutError"),
        "Names of the exception classes that are retried, with their subclasses. `Exception` retries everything.",
    ),
    Option(
        "batch-rows", count(1), str, 65_536,
        "Maximum number of rows in one message. A vectorized function never gets more rows at once.",
    ),
    Option(
        "cache-ttl", duration_or_zero, format_seconds, None,
        "How long the server keeps the value of a row for equal arguments; `0 s` disables the cache. Default: no "
        "cache.",
    ),
    Option(
        "cache-key", text, str, None,
        "A text that is part of the key of every row, such as the name of a model. Values with another key are not "
        "used.",
    ),
    Option(
        "cache-scope", choice(CacheScope), _ENUM, None,
        "Who gets a value that was kept: the same `caller`, or `all`. Default: `caller` if callers authenticate, else "
        "`all`.",
    ),
    Option(
        "cache-mode", choice(CacheMode), _ENUM, CacheMode.USE,
        "`use` the values that were kept, or `refresh` them: every row is called, unless an equal one is in flight, "
        "and its value is kept.",
    ),
    Option(
        "cache-errors", duration_or_zero, format_seconds, 0.0,
        "How long the server keeps the error of a row that is not retryable. By default errors are not kept.",
    ),
    Option(
        "cache-timeout", duration, format_seconds, 0.5,
        "Maximum time that a look-up in the cache may delay a message. After it, its rows are called.",
    ),
)  # fmt: skip
_HOSTED = (
    Option(
        "max-queue-delay", duration_or_zero, format_seconds, None,
        "Rows of all streams meet in common calls of a vectorized or list function, and a row waits at most this time "
        "for others. Default: each stream has separate calls.",
    ),
    Option(
        "batch-bytes", size, str, 64 << 20,
        "Maximum bytes of the arguments of a common call. `batch-rows` is the maximum of its rows.",
    ),
    Option(
        "instances", count(1), str, 1,
        "Maximum number of common calls at once per server process: on threads, or for `async def` on its event loop. "
        "Each call of a class whose `eval` is a `def` has an object of the class for itself.",
    ),
    Option(
        "mix-callers", switch, lambda value: str(value).lower(), True,
        "Whether a common call may have rows of several callers.",
    ),
    Option(
        "hedge-after", duration_or_p95, lambda value: value if value == P95 else format_seconds(value), None,
        "If a call of an idempotent `async def` function takes longer than this, a second one is sent, and the first "
        "answer counts. `p95`: longer than 95 % of the latest calls. Default: no second calls.",
    ),
    Option(
        "hedge-share", fraction, "{:.6g}".format, 0.05,
        "Maximum share of the calls for which a second one is sent, such as '5%'.",
    ),
)  # fmt: skip
_CALLER = (
    Option(
        "on-error", choice(OnError), _ENUM, OnError.FAIL,
        "What happens to a failed row: `fail` the job, `null`, an error `column`, or a `dead-letter` file.",
    ),
    Option("dead-letter", path, str, None, "Directory (path or URI) of the Parquet files of failed rows."),
    Option("max-errors", count(0), str, None, "Maximum number of failed rows of a task. With more, the job fails."),
    Option(
        "max-error-rate", fraction, "{:.6g}".format, None,
        "Maximum share of failed rows of a task, such as '5%'. It is checked from 100 rows on and at the end.",
    ),
)  # fmt: skip

_BUNDLE = (
    Option(
        "size", count(1), str, 4_000_000,
        "Maximum number of rows in one bundle, over all its keys (FLIP-491). Results do not depend on it.",
    ),
    Option(
        "allow-latency", duration, format_seconds, 10.0,
        "How long rows may wait for their bundle to fill, if the input is slower than that (FLIP-491).",
    ),
    Option(
        "timeout", duration, format_seconds, 180.0,
        "Total time of a bundle, including queueing, every attempt and every delay.",
    ),
)  # fmt: skip
_STREAM = (
    Option(
        "buckets", count(1), str, 64,
        "Number of buckets into which keys are hashed on a stream. The keys of a bucket are sent to the server "
        "together. A checkpoint keeps its initial number.",
    ),
)  # fmt: skip
_RETRIES = ("retry-strategy", "fixed-delay", "initial-delay", "max-delay", "max-attempts", "retry-on")

SCALAR_OPTIONS: Mapping[str, Option] = {option.name: option for option in _SCALAR}
"""Options of scalar functions that the server applies. They may be set at every level."""
HOSTED_OPTIONS: Mapping[str, Option] = {option.name: option for option in _HOSTED}
"""Options of scalar functions that concern all their calls on a server. Only the declaration and the server's
configuration may set them."""
REMOVED_OPTIONS: Mapping[str, str] = {
    "hedge-elsewhere": "rows of a slow message are not sent to another server any more; `async def` functions have "
    "hedge-after",
}
"""Hosted options of earlier versions, which have no effect, and what to do instead."""
AGGREGATE_OPTIONS: Mapping[str, Option] = {
    **{option.name: option for option in _BUNDLE},
    **{name: SCALAR_OPTIONS[name] for name in _RETRIES},
}
"""Options of aggregate functions that the server applies. They may be set at every level; bundles are retried."""
CALLER_OPTIONS: Mapping[str, Option] = {option.name: option for option in _CALLER}
"""Options that the client applies: callers choose what happens to errors. They may be set at call and session."""
STREAM_OPTIONS: Mapping[str, Option] = {option.name: option for option in _STREAM}
"""Options that the client applies to process table functions on streams. They may be set at call and session."""
