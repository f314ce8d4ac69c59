"""Every query that deploy/ asks of Prometheus, and the metrics it may ask for."""

import re
from typing import Any

import yaml

from deploy.dashboard import dashboard
from tests.deploy.images import ROOT
from tests.docs import tables

RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
OUTSIDE = {"udf_process_restarts_total", "up"}
"""Of the parent of worker processes, and of Prometheus itself."""
CHOSEN = {"$job": ".*", "$instance": ".*", "$function": ".*", "$__rate_interval": "5m"}
WORD = re.compile(r"[a-zA-Z_][\w:]*")
ABSENT = re.compile(r"^absent\(([^()]*)\)")
THRESHOLD = re.compile(r"^(.*?) (?:>|<|==) [\d.]+(?: and .*)?$", re.DOTALL)


def rules() -> list[dict[str, Any]]:
    """Recording and alerting rules, in the order of the files."""
    groups = (group for path in RULES for group in yaml.safe_load(path.read_text())["groups"])
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard that have queries."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def panel_queries() -> list[str]:
    """With the dashboard's variables as a person who has chosen nothing finds them."""
    return [asked(target["expr"]) for panel in panels() for target in panel["targets"]]


def asked(query: str) -> str:
    """A query as Prometheus gets it."""
    for variable, value in CHOSEN.items():
        query = query.replace(variable, value)
    return query


def measured(expression: str) -> str:
    """What an alert compares with its threshold."""
    if absent := ABSENT.match(expression):
        return absent[1]
    match = THRESHOLD.match(expression)
    assert match is not None, expression
    return match[1]


def catalogue() -> set[str]:
    """Names of samples that a server gives Prometheus, or a rule records."""
    names = set(OUTSIDE)
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", tables.metrics(), re.MULTILINE):
        parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}.get(kind, ("",))
        names |= {f"{name}{part}" for part in parts}
    return names | {rule["record"] for rule in rules() if "record" in rule}


def metrics_of(expression: str) -> set[str]:
    """The names of metrics in PromQL: words that are no label, text, function, keyword or duration."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|without) \([^)]*\)|\"[^\"]*\"", "", expression)
    return {word for word in WORD.findall(bare) if word.startswith("udf_") or ":" in word or word == "up"}
