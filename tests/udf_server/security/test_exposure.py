"""The requirements of a server that others reach, and the answers of its ports and sockets."""

import socket
import stat
import urllib.error
import urllib.request

import pytest

from spark_client.base.security import Security
from tests.udf_server.secured import answers, plus_one
from udf_server.base.errors import InvalidConfig
from udf_server.security import files
from udf_server.serving.config import ServerConfig
from udf_server.serving.server import Server


@pytest.fixture(autouse=True)
def _look_always(monkeypatch):
    monkeypatch.setattr(files, "LOOK_SECONDS", 0.0)


BEYOND = [
    ({}, "would accept every caller: set 'access_file'"),
    ({"access_file": "access"}, "bearer tokens would be sent unencrypted"),
    ({"access_file": "access", "allow_anonymous": True}, "bearer tokens would be sent unencrypted"),
]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "udf.example"])
@pytest.mark.parametrize(("settings", "why"), BEYOND)
def test_a_server_that_others_reach_does_not_start_open_to_all(host, settings, why):
    with pytest.raises(InvalidConfig, match=f"listens on {host}, beyond this machine, and {why}"):
        Server(ServerConfig(host=host, entry_points=False, **settings))


def test_who_wants_to_serve_anybody_says_so(serve, caplog):
    target = serve(plus_one, host="0.0.0.0", allow_anonymous=True).target
    assert "every caller that reaches this address is served" in caplog.text
    assert answers(f"127.0.0.1:{target.rpartition(':')[2]}", Security()) == 2


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tls_certificate": "here.pem"}, "'tls_certificate' and 'tls_key' belong together"),
        ({"tls_client_ca": "ca.pem"}, "'tls_client_ca' needs 'tls_certificate'"),
        ({"access_file": "/no/such/file"}, "cannot read /no/such/file"),
    ],
)
def test_settings_of_security_that_make_no_sense_stop_the_start(settings, why):
    with pytest.raises(InvalidConfig, match=why):
        Server(ServerConfig(entry_points=False, **settings))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[job]\ntoken_sha256 = "swordfish"\n', "token_sha256 is not 64 hexadecimal digits"),
        ("[job]\nfunctions = ['*']\n", "neither token_sha256 nor certificate"),
        ("[job]\ntokens = ['*']\n", "a table of certificate, functions, token_sha256"),
        ("job = 1\n", "a table of"),
        (f'[a]\ntoken_sha256 = "{"0" * 64}"\n[b]\ntoken_sha256 = "{"0" * 64}"\n', "identifies the same caller as 'a'"),
        ("[job]\ncertificate = 'x'\nfunctions = [1]\n", "functions: expected a string, or a list of strings"),
    ],
)
def test_an_access_file_that_makes_no_sense_stops_the_start(access, text, why):
    with pytest.raises(InvalidConfig, match=why) as caught:
        Server(ServerConfig(entry_points=False, access_file=access(text)))
    assert "swordfish" not in str(caught.value)


def test_a_unix_socket_is_for_its_owner_and_is_not_taken_from_a_living_server(serve, tmp_path):
    path = tmp_path / "udf.sock"
    target = serve(plus_one, unix_socket=str(path)).target
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InvalidConfig, match="another server does"):
        serve(plus_one, unix_socket=str(path))
    assert answers(target, Security()) == 2


def test_a_socket_that_a_dead_server_left_is_taken_over(serve, tmp_path):
    path = tmp_path / "udf.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert answers(serve(plus_one, unix_socket=str(path)).target, Security()) == 2


@pytest.mark.parametrize("path", ["/debug", "/page.js/../site.py", "/metrics/../etc/passwd", "/livez/x", "/functions"])
def test_the_http_port_has_metrics_health_and_the_page_and_nothing_else(serve, path):
    url = serve(plus_one).server.metrics_url
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url + path, timeout=10)
    assert caught.value.code == 404
    caught.value.close()
