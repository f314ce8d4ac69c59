"""TLS: certificates of the server and of clients, and their rotation."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import grpc
import pytest

from remote_udf.errors import StreamError
from spark_client.base.config import ClientConfig
from spark_client.base.errors import AccessDenied, NotARemoteUdfServer, ServerUnavailable
from spark_client.base.security import Security
from spark_client.functions.directory import list_functions
from tests.chaos.servers import ChaosServer
from tests.udf_server.secured import Pki, answers, plus_one
from udf_server.security import files
from udf_server.security.access import hashed, new_token


@pytest.fixture(autouse=True)
def _look_always(monkeypatch):
    monkeypatch.setattr(files, "LOOK_SECONDS", 0.0)


def test_tls_is_for_clients_who_know_the_authority(serve, pki):
    certificate, key = pki.issue("server")
    target = serve(plus_one, tls_certificate=certificate, tls_key=key).target
    assert answers(target, Security(ca_file=pki.ca)) == 2
    for stranger, told in ((Security(), "uses TLS"), (Security(tls=True), "is not accepted: set ca_file")):
        with pytest.raises(NotARemoteUdfServer, match=told):
            list_functions(ClientConfig(target, 0.5, stranger))


def test_a_client_certificate_is_who_calls(serve, pki, access):
    certificate, key = pki.issue("server")
    rules = access('[etl]\ncertificate = "etl.example"\nfunctions = ["plus_one"]\n')
    target = serve(plus_one, tls_certificate=certificate, tls_key=key, tls_client_ca=pki.ca, access_file=rules).target
    mine = pki.issue("etl", "etl.example")
    etl = Security(ca_file=pki.ca, certificate_file=mine[0], key_file=mine[1])
    assert answers(target, etl) == 2
    with pytest.raises(ServerUnavailable):
        list_functions(ClientConfig(target, 0.5, Security(ca_file=pki.ca)))
    others = pki.issue("other", "other.example")
    with pytest.raises(AccessDenied, match=r"a certificate for 'other\.example', which has no rule"):
        list_functions(
            ClientConfig(target, 5.0, Security(ca_file=pki.ca, certificate_file=others[0], key_file=others[1]))
        )


def test_a_token_takes_precedence_over_a_certificate(serve, pki, access, token_file):
    certificate, key = pki.issue("server")
    token = new_token()
    rules = access(f"""
        [reporting]
        token_sha256 = "{hashed(token)}"
        functions = ["plus_one"]

        [etl]
        certificate = "etl.example"
        functions = ["nothing_else"]
    """)
    target = serve(plus_one, tls_certificate=certificate, tls_key=key, tls_client_ca=pki.ca, access_file=rules).target
    mine = pki.issue("etl", "etl.example")
    of_certificate = Security(ca_file=pki.ca, certificate_file=mine[0], key_file=mine[1])
    with pytest.raises(StreamError, match=r"PERMISSION_DENIED: 'etl' may not call"):
        answers(target, of_certificate)
    assert answers(target, replace(of_certificate, token_file=token_file(token))) == 2


def test_a_certificate_is_checked_against_the_name_of_the_target(serve, pki):
    certificate, key = pki.issue("server", names=["localhost"])
    port = serve(plus_one, tls_certificate=certificate, tls_key=key).target.rpartition(":")[2]
    assert answers(f"dns:///localhost:{port}", Security(ca_file=pki.ca)) == 2
    with pytest.raises(ServerUnavailable, match="Hostname Verification Check failed"):
        list_functions(ClientConfig(f"127.0.0.1:{port}", 0.5, Security(ca_file=pki.ca)))


def test_a_certificate_of_another_authority_gets_nobody_in(serve, pki, tmp_path):
    certificate, key = pki.issue("server")
    target = serve(plus_one, tls_certificate=certificate, tls_key=key, tls_client_ca=pki.ca).target
    (tmp_path / "forged").mkdir()
    forged = Pki(tmp_path / "forged").issue("etl", "etl.example")
    with pytest.raises(ServerUnavailable):
        list_functions(
            ClientConfig(target, 0.5, Security(ca_file=pki.ca, certificate_file=forged[0], key_file=forged[1]))
        )


def peer_certificate(target):
    host, _, port = target.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def test_a_new_certificate_is_served_without_a_restart_and_one_without_its_key_is_not(serve, pki, tmp_path):
    certificate, key = pki.issue("server")
    serving = serve(plus_one, tls_certificate=certificate, tls_key=key)
    first = peer_certificate(serving.target)
    pki.issue("server")
    second = peer_certificate(serving.target)
    assert second != first
    # Half of a rotation: the key is still the old one.
    pki.issue("other")
    (tmp_path / "server.key").write_bytes((tmp_path / "other.key").read_bytes())
    assert peer_certificate(serving.target) == second
    assert serving.metric("udf_file_reloads_total", files="tls", outcome="failed") == 1
    assert answers(serving.target, Security(ca_file=pki.ca)) == 2


def test_grpc_gets_a_certificate_once_for_each_change_of_the_files(serve, pki, monkeypatch):
    real, given = grpc.dynamic_ssl_server_credentials, []

    def recorded(first, fetch, **arguments):
        def fetched():
            given.append(fetch())
            return given[-1]

        return real(first, fetched, **arguments)

    monkeypatch.setattr(grpc, "dynamic_ssl_server_credentials", recorded)
    certificate, key = pki.issue("server")
    target = serve(plus_one, tls_certificate=certificate, tls_key=key).target
    for _ in range(3):
        peer_certificate(target)
    assert given
    assert not any(given)
    pki.issue("server")
    given.clear()
    for _ in range(3):
        peer_certificate(target)
    assert [each is not None for each in given] == [True, False, False]


@pytest.mark.long
def test_a_server_survives_many_handshakes_at_once_good_and_bad(pki, tmp_path):
    certificate, key = pki.issue("server")
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import udf_server as udf\n\n@udf.scalar\ndef f(x: int) -> int:\n    return x\n")
    server = ChaosServer(
        plugin=str(plugin), log=tmp_path / "log",
        UDF_CONFIG_TLS_CERTIFICATE=certificate, UDF_CONFIG_TLS_KEY=key,
    )  # fmt: skip
    context = ssl.create_default_context(cafile=pki.ca)
    context.set_alpn_protocols(["h2"])

    def connect(number):
        with socket.create_connection(("127.0.0.1", server.port), 20) as plain:
            if number % 3:
                plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            else:
                with context.wrap_socket(plain, server_hostname="localhost"):
                    pass

    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(connect, range(9_000)))
        assert list_functions(ClientConfig(f"localhost:{server.port}", 20.0, Security(ca_file=pki.ca)))
    finally:
        server.kill()
    assert not (tmp_path / "log").read_text(), "bad handshakes do not fill the log"
