"""Recording and alerting rules: promtool's own checks and tests, and that they ask for metrics there are."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.images import ROOT
from tests.deploy.queries import OUTSIDE, RULES, catalogue, metrics_of, rules
from udf_server.base.metrics import ServerMetrics

CASES = sorted(Path(__file__).parent.glob("promtool/*.yml"))
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's prometheus")


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_configuration_and_rules():
    promtool("check", "config", ROOT / "deploy/prometheus/prometheus.yml")
    promtool("check", "rules", *RULES)


@needs_promtool
def test_rules_do_what_their_cases_say():
    promtool("test", "rules", *CASES)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("record") or rule.get("alert"))
def test_a_rule_asks_for_metrics_that_there_are(rule):
    asked = metrics_of(rule["expr"])
    assert asked
    assert asked <= catalogue()


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("record") or rule.get("alert"))
def test_what_a_rule_counts_begins_at_0(rule):
    """If a counter appears with its first event, its rate lacks that event."""
    counted = {name for name in metrics_of(rule["expr"]) if name.endswith(("_total", "_count"))}
    assert counted - OUTSIDE <= _begun()


def test_of_a_function_nothing_begins_that_no_rule_counts():
    """A scrape of many functions that are not called has nothing else."""
    counted = {name for rule in rules() for name in metrics_of(rule["expr"])}
    assert _begun("function") <= counted


def _begun(label: str | None = None) -> set[str]:
    """The samples of a function that was not called, and of its server; or only those with the label."""
    metrics = ServerMetrics()
    metrics.function("f", "1")
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {sample.name for sample in samples if label is None or label in sample.labels}


def test_every_alert_fires_in_a_case_and_is_silent_in_one():
    fired, silent = set(), set()
    for path in CASES:
        for case in yaml.safe_load(path.read_text())["tests"]:
            for tried in case.get("alert_rule_test", ()):
                (fired if tried["exp_alerts"] else silent).add(tried["alertname"])
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert fired == silent == alerts


def test_every_recording_rule_has_a_case():
    tried = {
        query["expr"]
        for path in CASES
        for case in yaml.safe_load(path.read_text())["tests"]
        for query in case.get("promql_expr_test", ())
    }
    assert tried == {rule["record"] for rule in rules() if "record" in rule}


def test_every_alert_says_what_to_do():
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"critical", "warning"}
            assert set(rule["annotations"]) == {"summary", "action"}
