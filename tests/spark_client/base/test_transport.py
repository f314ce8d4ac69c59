"""The meaning of targets, the recognition of other servers, and the meaning of gRPC's status codes."""

import http.server
import os
import socket
import threading
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest

import udf_server as udf
from remote_udf.errors import RemoteUdfError
from spark_client.base.config import ClientConfig
from spark_client.base.errors import AccessDenied, EmbeddedServerFailed, NotARemoteUdfServer, ServerUnavailable
from spark_client.base.transport import TransportLost
from spark_client.executor.stream.channels import process_channels
from spark_client.executor.stream.transport import GrpcTransport, NoGrpcServer, translated, transport_for
from spark_client.functions.directory import list_functions
from spark_client.testing import LocalTransport, local_transport
from tests.ports import free_port
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


# Targets.

PLUGIN = """
import udf_server as udf

@udf.scalar
def plus_two(x: int) -> int:
    return x + 2
"""


def test_local_with_a_module_or_file_is_this_process(plugin, tmp_path, monkeypatch):
    path = plugin(PLUGIN, "module_of_functions.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    for target in (f"local:{path}", "local:module_of_functions"):
        transport = transport_for(ClientConfig(target, in_process=local_transport))
        assert isinstance(transport, LocalTransport)
        assert transport is transport_for(ClientConfig(target, in_process=local_transport))
        assert [spec.name for spec in list_functions(ClientConfig(target, in_process=local_transport))] == ["plus_two"]
        local_transport(target.removeprefix("local:")).close()


@pytest.mark.parametrize("target", ["local:50051", "localhost:50051", "dns:///local:1", "unix:/tmp/local"])
def test_a_host_called_local_is_a_host(target):
    assert isinstance(transport_for(ClientConfig(target, in_process=local_transport)), GrpcTransport)


@pytest.mark.parametrize("target", ["local:", "local:no_such_module", "local:/no/such/file.py"])
def test_a_local_target_without_functions_is_an_error_that_names_it(target):
    with pytest.raises(RemoteUdfError) as caught:
        transport_for(ClientConfig(target, in_process=local_transport))
    assert target.removeprefix("local:") in str(caught.value)


def test_streams_of_one_process_share_a_channel(serve, monkeypatch):
    made = []
    monkeypatch.setattr(
        grpc, "insecure_channel", lambda *a, _make=grpc.insecure_channel, **k: made.append(a) or _make(*a, **k)
    )
    # As in a process without channels, because this one may have one to an ended server with the same port.
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: -pid)
    target = serve(plus_one).target
    for _ in range(3):
        call = call_of(plus_one, target)
        stream = stream_of(call, transport_for(call.config))
        stream.submit(chunk_of([1]))
        assert everything(stream) == {0: 2}
        stream.finish()
    assert len(made) == 1


def test_a_forked_process_gets_a_channel_of_its_own(monkeypatch):
    parents, pid = process_channels(), os.getpid()
    assert process_channels() is parents
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    assert process_channels() is not parents


# Other servers.


@contextmanager
def listening(reply):
    """Runs a server that sends these bytes to every client."""
    server = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def run():
        while True:
            connection, _ = server.accept()
            with connection:
                if ended.is_set():
                    return
                connection.recv(1000)
                connection.sendall(reply)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        ended.set()
        socket.create_connection(server.getsockname()).close()
        thread.join(10)
        server.close()


def test_another_grpc_server_is_recognised_at_once():
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(
            NotARemoteUdfServer, match=rf"the server at 127.0.0.1:{port} offers no remote_udf.v1.UdfService"
        ):
            list_functions(ClientConfig(f"127.0.0.1:{port}", 60))
        call = call_of(plus_one, f"127.0.0.1:{port}", connect_seconds=60)
        with pytest.raises(NotARemoteUdfServer, match="offers no"):
            stream_of(call, transport_for(call.config))
    finally:
        server.stop(None).wait()


class Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments): ...


def test_a_web_server_is_recognised_at_once():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(
            NotARemoteUdfServer, match=f"what answers at 127.0.0.1:{server.server_port} is not a gRPC server"
        ):
            list_functions(ClientConfig(f"127.0.0.1:{server.server_port}", 60))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "reply", [b"SSH-2.0-OpenSSH_9.6\r\n" * 3, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"]
)
def test_any_other_server_is_recognised_at_once(reply):
    with listening(reply) as port, pytest.raises(NotARemoteUdfServer, match="is not a gRPC server"):
        list_functions(ClientConfig(f"127.0.0.1:{port}", 60))


def test_a_server_that_hangs_up_may_be_one_of_ours_that_is_starting():
    with listening(b"") as port, pytest.raises(ServerUnavailable, match=r"within 0.5 s: UNAVAILABLE"):
        list_functions(ClientConfig(f"127.0.0.1:{port}", 0.5))


def test_nothing_there_is_an_error_with_the_target_the_time_and_the_reason():
    target = f"127.0.0.1:{free_port()}"
    with pytest.raises(
        ServerUnavailable, match=rf"no remote-udf server at {target} within 0.3 s: UNAVAILABLE: .*refused"
    ):
        list_functions(ClientConfig(target, 0.3))
    call = call_of(plus_one, target, connect_seconds=0.3)
    with pytest.raises(ServerUnavailable, match=rf"function plus_one@1: no server at {target}: UNAVAILABLE: .*refused"):
        stream_of(call, transport_for(call.config))


# Progress.


def test_only_the_servers_that_are_named_are_asked_for_progress_and_each_has_its_own_id(serve):
    servers = [serve(plus_one).target for _ in range(2)]
    transport = GrpcTransport(ClientConfig(",".join([*servers, f"127.0.0.1:{free_port()}"])))
    found = transport.progress("s", 20, transport.servers())
    assert set(found) == {*servers}
    assert len({answer.server for answer in found.values()} - {""}) == 2
    again = transport.progress("s", 20, [servers[1]])
    assert again == {servers[1]: found[servers[1]]}


# Status codes.


class Status(grpc.RpcError):
    def __init__(self, code, details):
        self._code, self._details = code, details

    def code(self):
        return self._code

    def details(self):
        return self._details


@pytest.mark.parametrize("code", grpc.StatusCode)
def test_every_status_code_becomes_an_error_of_ours(code):
    error = translated(Status(code, "because"), "there:1")
    again = {"UNAVAILABLE", "CANCELLED", "ABORTED", "INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED"}
    kind = (
        AccessDenied
        if code.name == "UNAUTHENTICATED"
        else TransportLost
        if code.name in again
        else NotARemoteUdfServer
        if code.name == "UNIMPLEMENTED"
        else EmbeddedServerFailed
        if code.name == "FAILED_PRECONDITION"
        else ServerUnavailable
    )
    assert type(error) is kind
    assert "because" in str(error)
    if kind is not TransportLost:
        assert "there:1" in str(error)


def test_details_may_be_missing():
    assert str(translated(Status(grpc.StatusCode.UNAVAILABLE, None), "there:1")) == "UNAVAILABLE: "


def test_a_proxy_that_speaks_http_while_its_server_is_away_loses_no_stream():
    details = "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got frame type 80)"
    error = translated(Status(grpc.StatusCode.UNAVAILABLE, details), "there:1")
    assert isinstance(error, NoGrpcServer)
    assert isinstance(error, TransportLost)
