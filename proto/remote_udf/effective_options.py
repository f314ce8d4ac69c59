"""Effective options of a call, from the layers in which they are set.

Options may be set at the call, in the Spark session, in the function's declaration and in the server's configuration.
This is their order of precedence, highest first, for each option separately.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from remote_udf.durations import parse_seconds
from remote_udf.errors import InvalidOption
from remote_udf.option_values import Option, unknown
from remote_udf.options import (
    AGGREGATE_OPTIONS,
    HOSTED_OPTIONS,
    REMOVED_OPTIONS,
    SCALAR_OPTIONS,
    CacheMode,
    CacheScope,
    OnError,
    OutputMode,
    RetryStrategy,
)

__all__ = [
    "AggregateOptions",
    "HostedOptions",
    "ScalarOptions",
    "canonical",
    "resolve_aggregate",
    "resolve_hosted",
    "resolve_scalar",
]

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


log = logging.getLogger(__name__)

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
        InvalidOption: A name is unknown (the message lists the known ones) or there in both spellings, a value is
            malformed, or options conflict.
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
        if option is None and name in REMOVED_OPTIONS and HOSTED_OPTIONS.keys() <= table.keys():
            log.warning(f"{source}: option {name!r} has no effect: {REMOVED_OPTIONS[name]}")
            continue
        if option is None:
            raise InvalidOption(f"{source}: {unknown('option', str(key), table, _ELSEWHERE.get(name))}")
        if value is None:
            continue
        if name in result:
            raise InvalidOption(f"{source}: option {name!r} is there twice, with a hyphen and with an underscore")
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
