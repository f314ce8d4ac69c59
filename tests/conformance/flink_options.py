"""A case's configuration, with Flink's names, as settings of the Spark session.

Flink's `max-attempts` counts retries, so its N is N + 1 attempts here, and it retries every exception.
Options that no function sees (parallelism, the runtime mode, the optimizer's) have no meaning here.
"""

from collections.abc import Mapping
from typing import Any

from remote_udf.functions import FunctionKind
from spark_client.base.options import SESSION_PREFIXES

__all__ = ["bundle_settings", "session_settings"]

_BUNDLE_PREFIX = "table.exec.bundled-agg."

_FLINK_PREFIXES = ("table.exec.async-scalar.", "table.exec.async-table.")
_RENAMED = {
    "max-concurrent-operations": "buffer-capacity",
    "retry-delay": "fixed-delay",
    "max-retries": "max-attempts",
}
_STRATEGIES = {"no-retry": "none"}
_DEFAULTS = {"max-attempts": 3, "retry-strategy": "fixed-delay"}
"""Flink's; ours differ in what retries."""


def session_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Spark settings by name. A name between prefix and option is a function's, perhaps after its catalog's.

    An unknown option is passed through, so that the client refuses it as it would refuse a user's.
    """
    owners: dict[str, dict[str, str]] = {"": {key: str(value) for key, value in _DEFAULTS.items()}}
    for key, value in config.items():
        prefix = next((prefix for prefix in _FLINK_PREFIXES if key.startswith(prefix)), None)
        if prefix is None:
            continue
        path, _, option = key.removeprefix(prefix).rpartition(".")
        owner = path.rpartition(".")[2]
        owners.setdefault(owner, {})[_RENAMED.get(option, option)] = str(value)
    settings: dict[str, str] = {}
    for prefix in sorted(set(SESSION_PREFIXES.values())):
        if not prefix.endswith("async-scalar"):
            continue
        for owner, options in owners.items():
            for option, text in _adjusted(options, general=not owner).items():
                settings[".".join(part for part in (prefix, owner, option) if part)] = text
    return settings


def bundle_settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns Spark settings of aggregates by name, like `session_settings`."""
    prefix = SESSION_PREFIXES[FunctionKind.AGGREGATE]
    settings = {}
    for key, value in config.items():
        if key.startswith(_BUNDLE_PREFIX):
            path, _, option = key.removeprefix(_BUNDLE_PREFIX).rpartition(".")
            owner = path.rpartition(".")[2]
            settings[".".join(part for part in (prefix, owner, option) if part)] = str(value)
    return settings


def _adjusted(options: Mapping[str, str], *, general: bool) -> dict[str, str]:
    adjusted = {**options, **({"retry-on": "Exception"} if general else {})}
    if "retry-strategy" in adjusted:
        strategy = adjusted["retry-strategy"].lower().replace("_", "-")
        adjusted["retry-strategy"] = _STRATEGIES.get(strategy, strategy)
    if adjusted.get("retry-strategy") == "none":
        # The strategy says it all: without retries there is neither a number of attempts nor a delay.
        return {name: text for name, text in adjusted.items() if name not in ("max-attempts", "fixed-delay")}
    attempts = adjusted.get("max-attempts", "")
    # Flink refuses less than one retry; the option refuses an unchanged 0, too.
    if attempts.isdigit() and int(attempts) >= 1:
        adjusted["max-attempts"] = str(int(attempts) + 1)
    return adjusted
