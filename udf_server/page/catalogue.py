"""The catalogue as JSON: the description and the statistics of each function."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypedDict

from remote_udf.function_names import version_key
from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.option_values import percent
from remote_udf.types import spelled
from remote_udf.version import __version__
from udf_server.base.metrics import ServerMetrics
from udf_server.hosting.registry import Registry
from udf_server.limits.budgets import Budgets
from udf_server.page.spending import (
    BudgetSpending,
    CallerSpending,
    added_budgets,
    added_callers,
    budgets_of,
    callers_of,
    samples_of,
)

__all__ = ["Catalogue", "Listed", "added_up", "catalogue", "facts_of", "united"]


class ServerFacts(TypedDict):
    """The server, of one or more processes."""

    version: str
    ready: bool
    try_calls: bool
    processes: int
    devices: list[str]


class Listed(TypedDict):
    """A version of a function, and what it has done."""

    key: str
    name: str
    version: str
    kind: str
    signature: str
    description: str
    facts: dict[str, str]
    parameters: list[dict[str, str]]
    tryable: bool
    statistics: dict[str, Any]
    """The numbers of `_NUMBERS`, those of `_BY_NAME` by name, and `texts`: the last message of each code."""


class Catalogue(TypedDict):
    """What the web UI shows."""

    server: ServerFacts
    functions: list[Listed]
    callers: list[CallerSpending]
    budgets: list[BudgetSpending]


_CACHE = ("cache_hit", "cache_miss", "cache_shared", "cache_uncached")
_WAITS = ("crowded", "result_waits", "rate_waits", "circuit_open")
_NUMBERS = ("ok", "failed", "skipped", "retries", "in_flight", "streams", "row_seconds", "row_count", *_CACHE, *_WAITS)
_BY_NAME = ("errors", "spent")
"""Statistics with a number for each code or unit."""


def catalogue(
    registry: Registry, metrics: ServerMetrics, *, may_see: Callable[[str], bool], ready: bool, try_calls: bool,
    devices: Sequence[str] = (), weights: Mapping[str, float] = MappingProxyType({}), budgets: Budgets | None = None,
    whose: Callable[[str], bool] = lambda caller: True,
) -> Catalogue:  # fmt: skip
    """The functions that a caller may see. `may_see` is called with the name of each function.

    `whose` is called with the name of each caller whose spending or errors would be listed.
    """
    statistics = _statistics(metrics, whose)
    return {
        "server": {
            "version": __version__, "ready": ready, "try_calls": try_calls, "processes": 1, "devices": [*devices]
        },
        "functions": [
            _listed(
                function.spec, registry.plugins[function.spec.key], weights.get(function.spec.key),
                statistics(function.spec.name, function.spec.version), try_calls=try_calls,
            )
            for function in registry
            if may_see(function.spec.name)
        ],
        "callers": callers_of(metrics, may_see, whose),
        "budgets": budgets_of(budgets, whose),
    }  # fmt: skip


def added_up(catalogues: Sequence[Catalogue]) -> Catalogue:
    """The catalogue of all processes of a server. Pass at least one. They differ in statistics, which are added."""
    first = _together(catalogues)
    for other in catalogues[1:]:
        for mine, theirs in zip(first["functions"], other["functions"], strict=True):
            for name in _NUMBERS:
                mine["statistics"][name] += theirs["statistics"][name]
            for name in _BY_NAME:
                total = mine["statistics"][name]
                for key, count in theirs["statistics"][name].items():
                    total[key] = total.get(key, 0) + count
            mine["statistics"]["texts"] |= theirs["statistics"]["texts"]
    return first


def united(catalogues: Mapping[str | None, Catalogue]) -> Catalogue:
    """The catalogue of all groups of a server, by group. Pass at least one. Each has other functions."""
    for group, each in catalogues.items():
        if group is not None:
            for function in each["functions"]:
                function["facts"] = {"group": group, **function["facts"]}
    first = _together([*catalogues.values()])
    first["functions"] = [function for each in catalogues.values() for function in each["functions"]]
    first["functions"].sort(key=lambda function: (function["name"], version_key(function["version"])))
    return first


def _together(catalogues: Sequence[Catalogue]) -> Catalogue:
    """The first catalogue, with what all of them say of the server, of callers and of budgets."""
    first = catalogues[0]
    first["callers"] = added_callers([each["callers"] for each in catalogues])
    first["budgets"] = added_budgets([each["budgets"] for each in catalogues])
    for other in catalogues[1:]:
        first["server"]["ready"] |= other["server"]["ready"]
        first["server"]["processes"] += other["server"]["processes"]
        first["server"]["devices"] += other["server"]["devices"]
    return first


def facts_of(spec: FunctionSpec, plugin: str, more: Mapping[str, str]) -> dict[str, str]:
    """What people read about a function, by title. `more` follows the plugin and its owner."""
    facts = {
        "plugin": plugin,
        **({"owner": spec.owner} if spec.owner else {}),
        **more,
        "execution": str(spec.execution),
        "deterministic": "yes" if spec.deterministic else "no",
        "nulls": str(spec.nulls),
        "options": ", ".join(f"{name}={text}" for name, text in spec.options.items()) or "the defaults",
    }
    if spec.accumulator is not None:
        able = {"merging": spec.supports_merging, "retracting": spec.supports_retracting}
        facts["accumulator"] = spelled(spec.accumulator)
        facts["supports"] = ", ".join(name for name, found in able.items() if found) or "neither merging nor retracting"
    return facts


def _listed(
    spec: FunctionSpec, plugin: str, weight: float | None, statistics: dict[str, Any], *, try_calls: bool
) -> Listed:
    more = {} if weight is None else {"weight": f"{percent(weight)} of the jobs"}
    return {
        "key": spec.key,
        "name": spec.name,
        "version": spec.version,
        "kind": str(spec.kind),
        "signature": spec.signature,
        "description": inspect.cleandoc(spec.description) if spec.description else "",
        "facts": facts_of(spec, plugin, more),
        "parameters": [
            {"name": parameter.name, "type": "table" if spec.process is not None else spelled(parameter.type)}
            for parameter in spec.parameters
        ],
        "tryable": try_calls and spec.kind is FunctionKind.SCALAR,
        "statistics": statistics,
    }


def _statistics(metrics: ServerMetrics, whose: Callable[[str], bool]) -> Callable[[str, str], dict[str, Any]]:
    """A function that returns the statistics of a function, from one reading of the metrics."""
    found: dict[tuple[str, str], dict[str, Any]] = {}

    def of(name: str, version: str) -> dict[str, Any]:
        named: dict[str, dict[str, Any]] = {name: {} for name in (*_BY_NAME, "texts")}
        return found.setdefault((name, version), {**dict.fromkeys(_NUMBERS, 0.0), **named})

    for sample in samples_of(metrics.rows, "_total"):
        of(sample.labels["function"], sample.labels["version"])[sample.labels["outcome"]] = sample.value
    for sample in samples_of(metrics.cache_rows, "_total"):
        statistics = of(sample.labels["function"], sample.labels["version"])
        statistics[f"cache_{sample.labels['outcome']}"] = sample.value
    for collector, name, end in (
        (metrics.retries, "retries", "_total"),
        (metrics.rows_in_flight, "in_flight", ""),
        (metrics.streams, "streams", ""),
        (metrics.row_duration, "row_seconds", "_sum"),
        (metrics.row_duration, "row_count", "_count"),
        (metrics.crowded, "crowded", "_total"),
        (metrics.result_waits, "result_waits", "_total"),
        (metrics.rate_waits, "rate_waits", "_total"),
        (metrics.circuit_open, "circuit_open", ""),
    ):
        for sample in samples_of(collector, end):
            of(sample.labels["function"], sample.labels["version"])[name] = sample.value
    for sample in samples_of(metrics.row_errors, "_total"):
        of(sample.labels["function"], sample.labels["version"])["errors"][sample.labels["code"]] = sample.value
    for (name, version, code), (caller, text) in list(metrics.last_errors.items()):
        if whose(caller):
            of(name, version)["texts"][code] = text
    for sample in samples_of(metrics.spent, "_total"):
        spent = of(sample.labels["function"], sample.labels["version"])["spent"]
        spent[sample.labels["unit"]] = spent.get(sample.labels["unit"], 0.0) + sample.value
    return of
