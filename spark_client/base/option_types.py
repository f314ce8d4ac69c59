"""Options of calls as types, so that an editor completes them; docs/options.md describes each option.

The tables of `remote_udf.options` are authoritative; a test compares both.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Literal, TypeAlias, TypedDict

from remote_udf.options import CacheMode, CacheScope, OnError, OutputMode, RetryStrategy

__all__ = ["AggregateCallOptions", "CallOptions", "EmitCallOptions", "ProcessCallOptions", "ScalarCallOptions"]

Count: TypeAlias = int | str | None
Duration: TypeAlias = str | timedelta | None
"""A timedelta, or text with a number and a unit, such as "2 s" or "100 ms"."""
Switch: TypeAlias = bool | Literal["true", "false"] | None
_ErrorClass: TypeAlias = str | type[BaseException]


class _Attempts(TypedDict, total=False):
    timeout: Duration
    retry_strategy: RetryStrategy | Literal["none", "fixed-delay", "exponential-delay"] | None
    fixed_delay: Duration
    initial_delay: Duration
    max_delay: Duration
    max_attempts: Count
    retry_on: _ErrorClass | Iterable[_ErrorClass] | None


class ScalarCallOptions(_Attempts, total=False):
    """Options of calls of scalar functions."""

    attempt_timeout: Duration
    buffer_capacity: Count
    output_mode: OutputMode | Literal["ordered", "unordered"] | None
    batch_rows: Count
    on_error: OnError | Literal["fail", "null", "column", "dead-letter"] | None
    dead_letter: str | None
    max_errors: Count
    max_error_rate: float | str | None
    cache_ttl: Duration
    cache_key: str | None
    cache_scope: CacheScope | Literal["caller", "all"] | None
    cache_mode: CacheMode | Literal["use", "refresh"] | None
    cache_errors: Duration
    cache_timeout: Duration


class AggregateCallOptions(_Attempts, total=False):
    """Options of calls of aggregate functions."""

    size: Count
    allow_latency: Duration
    on_error: OnError | Literal["fail", "null", "column"] | None


class ProcessCallOptions(_Attempts, total=False):
    """Options of calls of process table functions."""

    size: Count
    allow_latency: Duration
    buckets: Count


class CallOptions(ScalarCallOptions, total=False):
    """Options of calls of functions that may be scalar or aggregate."""

    size: Count
    allow_latency: Duration


class EmitCallOptions(TypedDict, total=False):
    """Options of `RemoteGrouping.emit`."""

    early_fire_enabled: Switch
    early_fire_delay: Duration
    late_fire_enabled: Switch
    late_fire_delay: Duration
    allow_lateness: Duration
