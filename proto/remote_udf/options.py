"""Options of calls: their names, values, defaults and precedence.

The names are those of FLIP-400 ("Public Interfaces", table of options). Options may be set at the call,
in the Spark session, in the function's declaration and in the server's configuration. This is their order of
precedence, highest first, for each option separately. Names have underscores in Python and hyphens elsewhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from remote_udf.durations import format_seconds, parse_seconds
from remote_udf.errors import InvalidOption
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
    unknown,
)

__all__ = [
    "AGGREGATE_OPTIONS",
    "CALLER_OPTIONS",
    "HOSTED_OPTIONS",
    "SCALAR_OPTIONS",
    "STREAM_OPTIONS",
    "AggregateOptions",
    "CacheMode",
    "CacheScope",
    "HostedOptions",
    "OnError",
    "OutputMode",
    "RetryStrategy",
    "ScalarOptions",
    "canonical",
    "resolve_aggregate",
    "resolve_hosted",
    "resolve_scalar",
]


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
        "for a retry counts. Default: 100 rows; for a vectorized function 1 batch, or 4 if it is `async`.",
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
        "`use` the values that were kept, or `refresh` them: every distinct row is called, and its value is kept.",
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
        "Maximum number of common calls at once per server process: on threads, or for `async def` on its event loop.",
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
        "Maximum share of the calls for which a second one is sent, such as '5%'; of messages for `hedge-elsewhere`.",
    ),
    Option(
        "hedge-elsewhere", duration_or_p95, lambda value: value if value == P95 else format_seconds(value), None,
        "If a message to an idempotent function is not answered for this time, the client sends its rows to another "
        "server too, and the first complete answer counts. `p95`: longer than 95 % of the latest messages. Default: "
        "rows are sent to another server only if theirs is lost.",
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
AGGREGATE_OPTIONS: Mapping[str, Option] = {
    **{option.name: option for option in _BUNDLE},
    **{name: SCALAR_OPTIONS[name] for name in _RETRIES},
}
"""Options of aggregate functions that the server applies. They may be set at every level; bundles are retried."""
CALLER_OPTIONS: Mapping[str, Option] = {option.name: option for option in _CALLER}
"""Options that the client applies: callers choose what happens to errors. They may be set at call and session."""
STREAM_OPTIONS: Mapping[str, Option] = {option.name: option for option in _STREAM}
"""Options that the client applies to process table functions on streams. They may be set at call and session."""

_NEEDS_STRATEGY = {
    "fixed-delay": RetryStrategy.FIXED_DELAY,
    "initial-delay": RetryStrategy.EXPONENTIAL_DELAY,
    "max-delay": RetryStrategy.EXPONENTIAL_DELAY,
}


@dataclass(frozen=True)
class ScalarOptions:
    """The effective options of one call, parsed. Durations are in seconds."""

    buffer_capacity: int | None = SCALAR_OPTIONS["buffer-capacity"].default
    """None if it is not set; the runner of each execution has its own default."""
    timeout: float = SCALAR_OPTIONS["timeout"].default
    attempt_timeout: float | None = SCALAR_OPTIONS["attempt-timeout"].default
    """None if only the row's deadline ends a call."""
    output_mode: OutputMode = SCALAR_OPTIONS["output-mode"].default
    retry_strategy: RetryStrategy = SCALAR_OPTIONS["retry-strategy"].default
    fixed_delay: float = SCALAR_OPTIONS["fixed-delay"].default
    initial_delay: float = SCALAR_OPTIONS["initial-delay"].default
    max_delay: float = SCALAR_OPTIONS["max-delay"].default
    max_attempts: int = SCALAR_OPTIONS["max-attempts"].default
    retry_on: tuple[str, ...] = SCALAR_OPTIONS["retry-on"].default
    batch_rows: int = SCALAR_OPTIONS["batch-rows"].default
    cache_ttl: float | None = SCALAR_OPTIONS["cache-ttl"].default
    """None or 0.0 if the outcomes of the call are not kept."""
    cache_key: str | None = SCALAR_OPTIONS["cache-key"].default
    cache_scope: CacheScope | None = SCALAR_OPTIONS["cache-scope"].default
    """None if it is not set; the server decides."""
    cache_mode: CacheMode = SCALAR_OPTIONS["cache-mode"].default
    cache_errors: float = SCALAR_OPTIONS["cache-errors"].default
    cache_timeout: float = SCALAR_OPTIONS["cache-timeout"].default

    def to_text(self) -> dict[str, str]:
        """The options that have a value, as text by hyphenated name, as in the message Opened."""
        values = ((name, option, getattr(self, option.attribute)) for name, option in SCALAR_OPTIONS.items())
        return {name: option.format(value) for name, option, value in values if value is not None}


@dataclass(frozen=True)
class HostedOptions:
    """The effective options of all calls of a function on a server, parsed. Durations are in seconds."""

    max_queue_delay: float | None = HOSTED_OPTIONS["max-queue-delay"].default
    """None if each stream has separate calls."""
    batch_bytes: int = HOSTED_OPTIONS["batch-bytes"].default
    instances: int = HOSTED_OPTIONS["instances"].default
    mix_callers: bool = HOSTED_OPTIONS["mix-callers"].default
    hedge_after: float | str | None = HOSTED_OPTIONS["hedge-after"].default
    """Seconds, "p95", or None if no second calls are sent."""
    hedge_share: float = HOSTED_OPTIONS["hedge-share"].default
    hedge_elsewhere: float | str | None = HOSTED_OPTIONS["hedge-elsewhere"].default
    """Seconds, "p95", or None if rows of a slow message are not sent to another server."""


@dataclass(frozen=True)
class AggregateOptions:
    """The effective options of an aggregate function, parsed. Durations are in seconds."""

    size: int = AGGREGATE_OPTIONS["size"].default
    allow_latency: float = AGGREGATE_OPTIONS["allow-latency"].default
    timeout: float = AGGREGATE_OPTIONS["timeout"].default
    retry_strategy: RetryStrategy = AGGREGATE_OPTIONS["retry-strategy"].default
    fixed_delay: float = AGGREGATE_OPTIONS["fixed-delay"].default
    initial_delay: float = AGGREGATE_OPTIONS["initial-delay"].default
    max_delay: float = AGGREGATE_OPTIONS["max-delay"].default
    max_attempts: int = AGGREGATE_OPTIONS["max-attempts"].default
    retry_on: tuple[str, ...] = AGGREGATE_OPTIONS["retry-on"].default

    def to_text(self) -> dict[str, str]:
        """The options as text by hyphenated name, as in the message Opened."""
        return {name: option.format(getattr(self, option.attribute)) for name, option in AGGREGATE_OPTIONS.items()}

    def for_segments(self) -> ScalarOptions:
        """The options with which segments are called: as rows of a vectorized function, one bundle per call."""
        return ScalarOptions(
            batch_rows=self.size,
            timeout=self.timeout,
            retry_strategy=self.retry_strategy,
            fixed_delay=self.fixed_delay,
            initial_delay=self.initial_delay,
            max_delay=self.max_delay,
            max_attempts=self.max_attempts,
            retry_on=self.retry_on,
        )


_ELSEWHERE = {
    "max-concurrent-operations": "buffer-capacity",
    "concurrency": "buffer-capacity",
    "max-concurrency": "buffer-capacity",
    "retry-delay": "fixed-delay",
    "max-retries": "max-attempts",
    "retries": "max-attempts",
}
"""Names of options in Flink and elsewhere, for the hint in an error: none of them is similar to ours."""


def canonical(
    given: Mapping[str, Any], *, source: str, known: Iterable[Mapping[str, Option]] = (SCALAR_OPTIONS,)
) -> dict[str, str]:
    """Return `given` with hyphenated names and canonical text values, in the same order.

    Args:
        given: Values by name, with hyphens or underscores. A value that is None counts as not given.
        source: Whose options these are, for the error message.
        known: The options that are accepted.

    Raises:
        InvalidOption: A name is unknown (the message lists the known ones), a value is malformed, or options conflict.
    """
    table = {name: option for options in known for name, option in options.items()}
    result: dict[str, str] = {}
    for key, value in given.items():
        name = str(key).replace("_", "-")
        option = table.get(name)
        if option is None and name.startswith("cache-") and name in SCALAR_OPTIONS and "timeout" in table:
            raise InvalidOption(
                f"{source}: option {name!r} is for scalar functions: the outcome of an aggregate or process table "
                "function depends on its state and on all rows of a key, so it is never kept"
            )
        if option is None and name in HOSTED_OPTIONS and "timeout" in table:
            raise InvalidOption(
                f"{source}: option {name!r} concerns all calls of a scalar function on a server; set it in the "
                "function's declaration or in the server's configuration"
            )
        if option is None:
            raise InvalidOption(f"{source}: {unknown('option', str(key), table, _ELSEWHERE.get(name))}")
        if value is None:
            continue
        try:
            result[name] = option.format(option.parse(value))
        except InvalidOption as error:
            raise InvalidOption(f"{source}: option {name!r}: {error}") from None
    _refuse_contradictions(result, source)
    return result


def _refuse_contradictions(texts: Mapping[str, str], source: str) -> None:
    """Refuse options of one layer that conflict. Unused options of a lower layer are ignored instead."""
    strategy = texts.get("retry-strategy")
    for name, needed in _NEEDS_STRATEGY.items():
        if strategy is not None and name in texts and strategy != needed:
            raise InvalidOption(f"{source}: option {name!r} cannot be combined with retry-strategy {strategy!r}")
    if strategy == RetryStrategy.NONE and texts.get("max-attempts", "1") != "1":
        raise InvalidOption(f"{source}: max-attempts {texts['max-attempts']} contradicts retry-strategy 'none'")
    delays = [parse_seconds(texts[name]) for name in ("initial-delay", "max-delay") if name in texts]
    if len(delays) == 2 and delays[0] > delays[1]:
        raise InvalidOption(f"{source}: initial-delay is longer than max-delay")
    policy = texts.get("on-error")
    if "dead-letter" in texts and policy not in (None, OnError.DEAD_LETTER):
        raise InvalidOption(f"{source}: option 'dead-letter' cannot be combined with on-error {policy!r}")


def resolve_scalar(*layers: Mapping[str, str]) -> ScalarOptions:
    """Return the effective options of a scalar function. Later layers win. Layers are those of `canonical`."""
    return ScalarOptions(**_resolved(SCALAR_OPTIONS, layers))


def resolve_hosted(*layers: Mapping[str, str]) -> HostedOptions:
    """Return the effective options of all calls of a function. Later layers win. Layers are those of `canonical`."""
    return HostedOptions(**_resolved(HOSTED_OPTIONS, layers))


def resolve_aggregate(*layers: Mapping[str, str]) -> AggregateOptions:
    """Return the effective options of an aggregate function. Later layers win. Layers are those of `canonical`."""
    return AggregateOptions(**_resolved(AGGREGATE_OPTIONS, layers))


def _resolved(known: Mapping[str, Option], layers: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    # A layer may have options of another table: those of a declaration concern calls and hosted functions.
    texts = {name: text for layer in layers for name, text in layer.items() if name in known}
    return {known[name].attribute: known[name].parse(text) for name, text in texts.items()}
