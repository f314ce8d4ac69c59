"""compose.yaml, read as an engine would: what it mounts is there, ports agree, nothing is open to the network."""

import re
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tests.deploy.images import ROOT
from udf_server.serving.config import load_config
from udf_server.serving.exposure import check_exposure

FILE = ROOT / "deploy/compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES = COMPOSE["services"]
SERVERS = ("server", "server-2")
EXPOSED = {
    "server": {50051: 50051, 9464: 9464}, "server-2": {50052: 50051, 9465: 9464}, "redis": {},
    "prometheus": {9090: 9090}, "grafana": {3000: 3000},
}  # fmt: skip
"""The ports of this machine, and those of the containers, by service."""


def test_there_are_two_servers_and_what_they_need():
    assert set(SERVICES) == set(EXPOSED)
    assert all(service["image"] for service in SERVICES.values())


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_of_this_machine_alone(name: str):
    found = {}
    for port in SERVICES[name].get("ports", ()):
        address, outside, inside = port.split(":")
        assert address == "127.0.0.1"
        found[int(outside)] = int(inside)
    assert found == EXPOSED[name]


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_exists(name: str):
    for mount in SERVICES[name].get("volumes", ()):
        source, target, *mode = mount.split(":")
        assert target.startswith("/")
        if source.startswith("."):
            assert (FILE.parent / source).exists(), source
            assert mode == ["ro"]
        else:
            assert source in COMPOSE["volumes"]


def test_the_server_is_built_from_the_dockerfile_with_plugins_that_are_here():
    build = SERVICES["server"]["build"]
    context = (FILE.parent / build["context"]).resolve()
    assert context == ROOT
    dockerfile = (context / build["dockerfile"]).read_text()
    assert set(build["args"]) <= set(re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE))
    default = re.fullmatch(r"\$\{PLUGINS:-(.*)\}", build["args"]["PLUGINS"])
    assert default is not None
    assert all((context / plugin / "pyproject.toml").exists() for plugin in default[1].split())


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_starts_with_these_settings_and_cannot_write(name: str):
    server = SERVICES[name]
    settings = load_config(
        ROOT / "deploy/container/server.toml", {**server["environment"], "UDF_CONFIG_HOST": "0.0.0.0"}
    )
    check_exposure(settings)
    # The host is a service, and the image has what a Redis needs.
    redis = urlsplit(settings.coordination_url or "")
    assert (redis.scheme, redis.hostname) == ("redis", "redis")
    assert redis.hostname in SERVICES and redis.hostname in server["depends_on"]
    assert "cache" in re.findall(r"'\.\[([\w,]+)\]'", (ROOT / "deploy/container/Dockerfile").read_text())[0].split(",")
    assert server["read_only"] and server["tmpfs"] == ["/tmp"] and server["cap_drop"] == ["ALL"]
    assert int(server["stop_grace_period"].removesuffix("s")) > settings.drain_seconds


def test_prometheus_scrapes_the_servers():
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert [target for job in scraped for each in job["static_configs"] for target in each["targets"]] == [
        f"{name}:9464" for name in SERVERS
    ]
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_services_there_are(name: str):
    waiting = SERVICES[name].get("depends_on", {})
    assert set(waiting) <= set(SERVICES)
    if isinstance(waiting, dict):
        assert all("healthcheck" in SERVICES[other] for other in waiting)
