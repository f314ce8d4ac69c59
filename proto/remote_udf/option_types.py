"""Options of calls as types, so that editors complete them and type checkers check them.

`make docs` writes them from the tables of `remote_udf.options`; docs/options.md describes each option.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Literal, TypeAlias, TypedDict

from remote_udf.options import AggregatePlan, CacheMode, CacheScope, OnError, OutputMode, RetryStrategy

__all__ = [
    "AggregateCallOptions",
    "CallOptions",
    "EmitCallOptions",
    "ProcessCallOptions",
    "ScalarCallOptions",
    "ScalarDefaults",
]

Count: TypeAlias = int | str
Duration: TypeAlias = str | timedelta
"""A timedelta, or text with a number and a unit, such as "2 s" or "100 ms"."""
Switch: TypeAlias = bool | Literal["true", "false"]
ErrorClasses: TypeAlias = str | type[BaseException] | Iterable[str | type[BaseException]]


# [[[cog
# import cog, option_types
# cog.out(option_types.types())
# ]]]
class _RetriedOptions(TypedDict, total=False):
    """Options of calls of all functions."""

    timeout: Duration | None
    retry_strategy: RetryStrategy | Literal["none", "fixed-delay", "exponential-delay"] | None
    fixed_delay: Duration | None
    initial_delay: Duration | None
    max_delay: Duration | None
    max_attempts: Count | None
    retry_on: ErrorClasses | None


class _RowOptions(_RetriedOptions, total=False):
    """Options of scalar functions, in a declaration and in a call."""

    buffer_capacity: Count | None
    attempt_timeout: Duration | None
    output_mode: OutputMode | Literal["ordered", "unordered"] | None
    retry_empty: Switch | None
    batch_rows: Count | None
    cache_ttl: Duration | None
    cache_scope: CacheScope | Literal["caller", "all"] | None
    cache_mode: CacheMode | Literal["use", "refresh"] | None
    cache_errors: Duration | None
    cache_timeout: Duration | None
    cache_required: Switch | None


class ScalarDefaults(_RowOptions, total=False):
    """Options in the declaration of a scalar function, without `cache_key`, which is a parameter."""

    max_queue_delay: Duration | None
    batch_bytes: Count | None
    instances: Count | None
    mix_callers: Switch | None
    hedge_after: Duration | None
    hedge_share: float | str | None


class ScalarCallOptions(_RowOptions, total=False):
    """Options of calls of scalar functions."""

    cache_key: str | None
    on_error: OnError | Literal["fail", "null", "column", "dead-letter"] | None
    dead_letter: str | None
    max_errors: Count | None
    max_error_rate: float | str | None


class AggregateCallOptions(_RetriedOptions, total=False):
    """Options of calls of aggregate functions."""

    size: Count | None
    allow_latency: Duration | None
    on_error: OnError | Literal["fail", "null", "column", "dead-letter"] | None
    aggregate_plan: AggregatePlan | Literal["auto", "one-task", "sorted", "partial"] | None


class ProcessCallOptions(_RetriedOptions, total=False):
    """Options of calls of process table functions."""

    size: Count | None
    allow_latency: Duration | None
    buckets: Count | None


class CallOptions(ScalarCallOptions, total=False):
    """Options of calls of functions that may be scalar or aggregate."""

    size: Count | None
    allow_latency: Duration | None
    aggregate_plan: AggregatePlan | Literal["auto", "one-task", "sorted", "partial"] | None


class EmitCallOptions(TypedDict, total=False):
    """Options of `RemoteGrouping.emit`."""

    early_fire_enabled: Switch | None
    early_fire_delay: Duration | None
    late_fire_enabled: Switch | None
    late_fire_delay: Duration | None
    allow_lateness: Duration | None


# [[[end]]]
