"""Reading the options of a call from the call itself and from the Spark session, and the caller's error policy.

A warning names the settings of the Spark session that apply to no function, because nothing else shows them.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from remote_udf.effective_options import canonical, resolve
from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.options import (
    AGGREGATE_OPTIONS,
    CALLER_OPTIONS,
    PLAN_OPTIONS,
    SCALAR_OPTIONS,
    STREAM_OPTIONS,
    AggregatePlan,
    ErrorPolicy,
    OnError,
    PlanOptions,
    StreamOptions,
)
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import alike
from spark_client.base.settings import all_settings, read_once

__all__ = [
    "EMIT_PREFIX", "KNOWN_OPTIONS", "SESSION_PREFIXES", "aggregate_plan_of", "buckets_of", "call_options",
    "note_functions", "options_of",
]  # fmt: skip

log = logging.getLogger(__name__)

SESSION_PREFIXES = {
    FunctionKind.SCALAR: "spark.remoteudf.async-scalar",
    FunctionKind.AGGREGATE: "spark.remoteudf.bundled-agg",
    FunctionKind.PROCESS: "spark.remoteudf.process-table",
}
"""`<prefix>.<function>.<option>` applies to one function, `<prefix>.<option>` to all functions of the kind."""
EMIT_PREFIX = "spark.remoteudf.emit"
"""`<prefix>.<option>` in the Spark session applies to every window aggregate on a stream."""
_GROUPS = (*SESSION_PREFIXES.values(), EMIT_PREFIX)

KNOWN_OPTIONS = {
    FunctionKind.SCALAR: (SCALAR_OPTIONS, CALLER_OPTIONS),
    FunctionKind.AGGREGATE: (AGGREGATE_OPTIONS, {"on-error": CALLER_OPTIONS["on-error"], **PLAN_OPTIONS}),
    # There is no on-error: without a result row per input row no column could contain an error, so it fails the job.
    FunctionKind.PROCESS: (AGGREGATE_OPTIONS, STREAM_OPTIONS),
}
"""By kind of function: the options that the server uses and those that the caller uses."""

_kinds: defaultdict[str, set[FunctionKind]] = defaultdict(set)
"""The kinds of functions by name, of all remote sessions of this process: a setting may be for another server."""
_warned: set[str] = set()


def call_options(
    spec: FunctionSpec, given: Mapping[str, object], spark: SparkSession | None
) -> tuple[dict[str, str], ErrorPolicy]:
    """The options for the server and the caller's error policy. Options of the call override those of the session.

    Raises InvalidOption for an unknown or malformed option, PlanError for an invalid error policy.
    """
    merged = _merged(spec, given, spark)
    policy = resolve(ErrorPolicy, merged)
    if policy.on_error is OnError.DEAD_LETTER and spec.kind is FunctionKind.AGGREGATE:
        raise PlanError(f"call of {spec.key}: an aggregate has no rows for a dead letter; use 'column'")
    if policy.on_error is OnError.DEAD_LETTER and policy.dead_letter is None:
        raise PlanError(f"call of {spec.key}: on-error 'dead-letter' needs the option 'dead-letter', a directory")
    if policy.on_error is OnError.FAIL and (policy.max_errors is not None or policy.max_error_rate is not None):
        raise PlanError(
            f"call of {spec.key}: an error budget cannot be combined with on-error 'fail'; choose another policy"
        )
    return {name: text for name, text in merged.items() if name in KNOWN_OPTIONS[spec.kind][0]}, policy


def buckets_of(spec: FunctionSpec, given: Mapping[str, object], spark: SparkSession) -> int:
    """The option `buckets`; the call's value overrides the session's. Raises InvalidOption."""
    return resolve(StreamOptions, _merged(spec, given, spark)).buckets


def aggregate_plan_of(spec: FunctionSpec, given: Mapping[str, object], spark: SparkSession) -> AggregatePlan:
    """The option `aggregate-plan`; the call's value overrides the session's. Raises InvalidOption."""
    return resolve(PlanOptions, _merged(spec, given, spark)).aggregate_plan


def _merged(spec: FunctionSpec, given: Mapping[str, object], spark: SparkSession | None) -> dict[str, str]:
    """The canonical options of a call, and those of the session, if one is given, that the call does not set."""
    session = {} if spark is None else _session_options(spark, spec.kind, spec.name)
    return {**session, **canonical(given, source=f"call of {spec.key}", known=KNOWN_OPTIONS[spec.kind])}


def _session_options(spark: SparkSession, kind: FunctionKind, function: str) -> dict[str, str]:
    """The canonical options that the session sets for a function. Options for this function take precedence.

    Raises InvalidOption for a key below the prefix that is not an option, even if it names another function:
    otherwise a misspelled option would never be noticed. A key for a function that no server has leads to a warning.
    """
    prefix = SESSION_PREFIXES[kind] + "."
    general: dict[str, object] = {}
    special: dict[str, object] = {}
    for key, value in read_once(spark, all_settings).items():
        if not key.startswith(prefix):
            if key.startswith("spark.remoteudf.") and not key.startswith(tuple(f"{group}." for group in _GROUPS)):
                _warn_of_group(key)
            continue
        owner, _, option = key.removeprefix(prefix).rpartition(".")
        checked = canonical({option: value}, source=f"session setting {key}", known=KNOWN_OPTIONS[kind])
        if not owner:
            general |= checked
        elif owner == function:
            special |= checked
        else:
            _warn_of_function(key, owner, kind)
    source = f"session settings below {prefix}"
    return canonical(general | special, source=source, known=KNOWN_OPTIONS[kind])


def options_of(kind: FunctionKind, options: Mapping[str, object]) -> dict[str, object]:
    """The options without those that only functions of another kind have."""
    names = {each: {name for table in tables for name in table} for each, tables in KNOWN_OPTIONS.items()}
    others = set().union(*names.values()) - names[kind]
    return {name: value for name, value in options.items() if name.replace("_", "-") not in others}


def note_functions(functions: Iterable[FunctionSpec]) -> None:
    """Note that a remote session has these functions."""
    for spec in functions:
        _kinds[spec.name].add(spec.kind)


def _warn_of_function(key: str, name: str, kind: FunctionKind) -> None:
    """Warn, once, if `key` sets an option of a function of this name and kind, and no server has one."""
    if key in _warned or kind in _kinds.get(name, ()):
        return
    plain, known = name.partition("@")[0], [each for each, kinds in _kinds.items() if kind in kinds]
    if plain in known:
        why = f"it is for all versions of a function, so write {plain!r} instead of {name!r}"
    elif name in _kinds:
        prefixes = " and ".join(SESSION_PREFIXES[each] for each in sorted(_kinds[name]))
        why = f"options of function {name!r} are below {prefixes}"
    else:
        why = f"no function of kind {kind} has the name {name!r}{_meant(plain, known)}"
    _warn(key, why)


def _warn_of_group(key: str) -> None:
    """Warn, once, of a key that is below none of the groups of settings."""
    if key not in _warned:
        near = _meant(key.split(".")[2], (group.rpartition(".")[2] for group in _GROUPS))
        _warn(key, f"the settings are those below {', '.join(sorted(_GROUPS))}{near}")


def _warn(key: str, why: str) -> None:
    _warned.add(key)
    log.warning("session setting %s has no effect: %s", key, why)


def _meant(name: str, known: Iterable[str]) -> str:
    near = alike(name, known)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
