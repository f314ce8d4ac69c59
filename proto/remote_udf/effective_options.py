"""Effective options of a call, from the layers in which they are set.

This is their order of precedence, highest first, for each option separately: the call, the Spark session, the server's
configuration for the function by its name, the function's declaration, the configuration for all functions, the
default. A cap of the configuration lowers the value, wherever it is set.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from remote_udf.durations import parse_seconds
from remote_udf.errors import InvalidOption
from remote_udf.option_tables import Option, read_values, table_of
from remote_udf.option_values import unknown
from remote_udf.options import (
    AT_MOST,
    DEFAULT_CAPACITY,
    HOSTED_OPTIONS,
    REMOVED_OPTIONS,
    SCALAR_OPTIONS,
    AggregateOptions,
    HostedOptions,
    OnError,
    RetryStrategy,
    ScalarOptions,
)

__all__ = ["AggregateOptions", "HostedOptions", "ScalarOptions", "canonical", "resolve"]

_NEEDS_STRATEGY = {
    "fixed-delay": RetryStrategy.FIXED_DELAY,
    "initial-delay": RetryStrategy.EXPONENTIAL_DELAY,
    "max-delay": RetryStrategy.EXPONENTIAL_DELAY,
}

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
    named: dict[str, Any] = {}
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
        if name in named:
            raise InvalidOption(f"{source}: option {name!r} is there twice, with a hyphen and with an underscore")
        named[name] = value
    values = read_values(table, named, lambda option: f"{source}: option {option.name!r}")
    texts = {name: table[name].format(values[table[name].attribute]) for name in named}
    _refuse_contradictions(texts, source)
    return texts


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


TableT = TypeVar("TableT")
_UNSET = {"attempt-timeout": math.inf, "buffer-capacity": DEFAULT_CAPACITY}
"""What an option without a value amounts to, for its cap; without a `cache-ttl` nothing is kept."""


def resolve(kind: type[TableT], *layers: Mapping[str, str]) -> TableT:
    """Return an object of a table of options. Later layers win. Layers are those of `canonical`, and may have caps."""
    table = table_of(kind)
    # A layer may have options of another table: those of a declaration concern calls and hosted functions.
    texts = {name: text for layer in layers for name, text in layer.items()}
    values = {known.attribute: known.parse(texts[name]) for name, known in table.items() if name in texts}
    for name, known in table.items():
        if (cap := texts.get(f"{AT_MOST}{name}")) is None:
            continue
        most, value = known.parse(cap), values.get(known.attribute, known.default)
        if (_UNSET.get(name, 0) if value is None else value) > most:
            values[known.attribute] = most
    return kind(**values)
