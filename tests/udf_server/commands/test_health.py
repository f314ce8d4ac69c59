"""`udf-server health`, as the health check of a container calls it."""

import pytest
from click.testing import CliRunner

import udf_server as udf
from udf_server.commands.cli import main
from udf_server.commands.shown import health_url
from udf_server.serving.config import ServerConfig


@udf.scalar
async def same(a: int) -> int:
    return a


def ask(serving, *arguments):
    port = serving.server.metrics_url.rpartition(":")[2]
    return CliRunner().invoke(main, ["health", "--metrics-port", port, *arguments])


def test_a_ready_server_is_well(serve):
    serving = serve(same)
    asked = ask(serving)
    assert (asked.exit_code, asked.output) == (0, f"{serving.server.metrics_url}/readyz: ok\n")


def test_a_draining_server_lives_and_is_not_ready(serve):
    serving = serve(same)
    serving.server.service.drain()
    asked = ask(serving)
    assert asked.exit_code == 1
    assert "503 Service Unavailable" in asked.output
    assert ask(serving, "--alive").exit_code == 0


def test_no_server_is_not_well(serve):
    serving = serve(same)
    serving.stop()
    asked = ask(serving)
    assert asked.exit_code == 1
    assert "refused" in asked.output


def test_a_proxy_is_not_asked(serve, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert ask(serve(same)).exit_code == 0


def test_settings_come_from_the_environment_as_the_servers_do(serve, monkeypatch):
    port = serve(same).server.metrics_url.rpartition(":")[2]
    monkeypatch.setenv("UDF_CONFIG_METRICS_PORT", port)
    monkeypatch.setenv("UDF_CONFIG_METRICS_HOST", "0.0.0.0")
    assert CliRunner().invoke(main, ["health"]).exit_code == 0


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:9464/readyz"),
        ("::", "http://[::1]:9464/readyz"),
        ("::1", "http://[::1]:9464/readyz"),
        ("10.0.0.7", "http://10.0.0.7:9464/readyz"),
        ("udf.example", "http://udf.example:9464/readyz"),
    ],
)
def test_the_url_is_of_an_address_that_can_be_asked(host, url):
    assert health_url(ServerConfig(metrics_host=host)) == url


def test_a_port_that_only_the_server_knows_is_refused():
    asked = CliRunner().invoke(main, ["health", "--metrics-port", "0"])
    assert asked.exit_code == 1
    assert "'metrics_port': 0 picks a free port" in asked.output
