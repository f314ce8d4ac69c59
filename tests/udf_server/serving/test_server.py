"""A whole server over gRPC: addresses, health, reflection, limits, draining."""

import asyncio
import socket
import stat
import threading

import grpc
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import udf_server as udf
from remote_udf.arrow import read_columns, write_schema
from remote_udf.functions import VALUE, FunctionSpec
from remote_udf.messages import encode, read_response
from remote_udf.v1 import message_pb2 as pb
from remote_udf.v1 import service_pb2
from tests.udf_server.talk import batch, finish, opening
from udf_server.base.errors import InvalidConfig, PluginImportError
from udf_server.hosting.registry import Registry
from udf_server.serving.config import ServerConfig
from udf_server.serving.server import Server, running_server
from udf_server.streams.service import SERVICE_NAME


@udf.scalar
async def same(a: int) -> int:
    """The same."""
    return a


@pytest.fixture
def channel():
    """Opens channels that the test closes by ending."""
    channels = []

    def connect(target):
        channels.append(grpc.insecure_channel(target))
        return channels[-1]

    yield connect
    for opened in channels:
        opened.close()


def execute(channel, *messages):
    """Returns the answers of one stream whose client waits for Opened, then sends the rest."""
    opened = threading.Event()

    def requests():
        yield messages[0]
        opened.wait(20)
        yield from messages[1:]

    answers = []
    try:
        for answer in channel.stream_stream(f"/{SERVICE_NAME}/Execute")(requests(), timeout=30):
            answers.append(read_response(answer))
            opened.set()
    finally:
        opened.set()
    return answers


def call_same(channel, values):
    answers = execute(channel, opening("same"), batch(0, 0, values), finish())
    kinds = [envelope.WhichOneof("response") for envelope, _ in answers]
    # Progress may be the notice that the server drains.
    assert [kind for kind in kinds if kind != "progress"] == ["opened", "result", "finished"]
    envelope, data = answers[kinds.index("result")]
    return read_columns(data, pa.schema([(VALUE, pa.int64())]), envelope.result.rows)[0].to_pylist()


def test_rows_go_in_and_come_out_over_a_port(serve, channel):
    assert call_same(channel(serve(same).target), [1, 2, None]) == [1, 2, None]


def test_rows_go_in_and_come_out_over_a_unix_socket(serve, channel, tmp_path):
    path = tmp_path / "udf.sock"
    target = serve(same, unix_socket=str(path)).target
    assert target == f"unix:{path}"
    assert call_same(channel(target), [1]) == [1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_socket_that_was_left_behind_is_replaced(serve, channel, tmp_path):
    path = tmp_path / "udf.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    assert call_same(channel(serve(same, unix_socket=str(path)).target), [1]) == [1]


def test_a_file_that_is_no_socket_is_left_alone(serve, tmp_path):
    path = tmp_path / "precious.txt"
    path.write_text("keep me")
    with pytest.raises(InvalidConfig, match="cannot listen on unix:"):
        serve(same, unix_socket=str(path))
    assert path.read_text() == "keep me"


def test_a_port_that_is_taken_is_refused_and_nothing_is_left_listening(serve):
    with socket.socket() as taken, socket.socket() as other:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidConfig, match=f"cannot listen on 127.0.0.1:{port}"):
            serve(same, port=port)
        with pytest.raises(InvalidConfig, match=f"cannot serve metrics at 127.0.0.1:{port}"):
            serve(same, metrics_port=port)
        other.bind(("127.0.0.1", 0))
    assert not [thread for thread in threading.enumerate() if thread.name == "http"]


def test_functions_are_listed_with_their_types(serve, channel):
    lister = channel(serve(same).target).unary_unary(
        f"/{SERVICE_NAME}/ListFunctions",
        request_serializer=service_pb2.ListFunctionsRequest.SerializeToString,
        response_deserializer=service_pb2.ListFunctionsResponse.FromString,
    )
    answer = lister(service_pb2.ListFunctionsRequest(), timeout=20)
    assert list(answer.protocol_versions) == [1]
    assert [FunctionSpec.from_proto(function) for function in answer.functions] == [same.spec]


@pytest.mark.parametrize("name", ["", SERVICE_NAME])
def test_health_says_serving_and_then_not(serve, channel, name):
    started, release = threading.Event(), threading.Event()
    serving = serve(wait_function(started, release))
    health = health_pb2_grpc.HealthStub(channel(serving.target))
    request = health_pb2.HealthCheckRequest(service=name)
    assert health.Check(request, timeout=20).status == health_pb2.HealthCheckResponse.SERVING
    first = threading.Thread(target=call_same, args=(channel(serving.target), [5]))
    first.start()
    assert started.wait(20)
    stopping = asyncio.run_coroutine_threadsafe(serving.server.stop(20), serving.loop)
    while not serving.server.service.draining:
        threading.Event().wait(0.002)
    assert health.Check(request, timeout=20).status == health_pb2.HealthCheckResponse.NOT_SERVING
    release.set()
    stopping.result(20)
    first.join(20)


def test_requests_beside_streams_that_are_no_small_ones_are_not_parsed(serve, channel):
    """Such a request has tiny unknown fields, which protobuf would parse for seconds on the server's loop."""
    serving = serve(same)
    junk = b"\xa0\x06\x00" * 1_000_000
    check = channel(serving.target).unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.RpcError):
        check(junk, timeout=20)
    listed = channel(serving.target).unary_unary(f"/{SERVICE_NAME}/ListFunctions")
    assert service_pb2.ListFunctionsResponse.FromString(listed(junk, timeout=20)).functions[0].name == "same"


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("grpc.health.v1.Health/Check", b"\xa0\x06\x00" * 30_000),
        ("grpc.health.v1.Health/Check", b"\x0a\x01\xff"),
        ("grpc.health.v1.Health/Watch", b"\x0a\x01\xff"),
        ("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", b"\x0b"),
    ],
)
def test_a_request_that_is_none_is_the_mistake_of_its_client(serve, channel, caplog, method, request_):
    call = channel(serve(same).target).stream_stream(f"/{method}")
    with pytest.raises(grpc.RpcError) as raised:
        list(call(iter([request_]), timeout=20))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_reflection_names_the_services(serve, channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel(serve(same).target))
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    [answer] = stub.ServerReflectionInfo(iter([request]), timeout=20)
    names = {service.name for service in answer.list_services_response.service}
    assert {SERVICE_NAME, "grpc.health.v1.Health"} <= names


def test_a_message_that_is_too_large_is_refused(serve, channel):
    target = serve(same, max_message_bytes=1 << 16).target
    with pytest.raises(grpc.RpcError) as raised:
        execute(channel(target), opening("same"), batch(0, 0, range(20_000)), finish())
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert call_same(channel(target), [1]) == [1]


def test_a_result_that_is_too_large_is_cut_or_an_error_of_its_row(serve, channel):
    @udf.scalar
    async def text(size: int) -> str:
        return "x" * size

    target = serve(text, max_message_bytes=1 << 16).target
    answers = execute(channel(target), opening("text"), batch(0, 0, [50_000, 90_000, 50_000]), finish())
    results = [envelope.result for envelope, _ in answers if envelope.WhichOneof("response") == "result"]
    assert sum(result.rows for result in results) == 3
    counts = answers[-1].envelope.finished.counts
    assert (counts.rows_ok, counts.rows_failed) == (2, 1)


def test_another_protocol_is_refused_with_the_one_that_is_spoken(serve, channel):
    [(envelope, _)] = execute(channel(serve(same).target), opening("same", protocol=2))
    assert envelope.error.code == "UNSUPPORTED_PROTOCOL"


def test_another_service_is_not_implemented(serve, channel):
    call = channel(serve(same).target).unary_unary("/another.Service/Method")
    with pytest.raises(grpc.RpcError) as raised:
        call(b"", timeout=20)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_what_is_no_grpc_at_all_does_no_harm(serve, channel):
    target = serve(same).target
    host, port = target.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\0" * 1000)
        while raw.recv(1 << 16):
            pass
    assert call_same(channel(target), [1]) == [1]


def wait_function(started, release):
    @udf.scalar(name="same")
    def wait(a: int) -> int:
        started.set()
        release.wait(20)
        return a

    return wait


def test_no_more_streams_than_the_limit_are_taken(serve, channel):
    started, release = threading.Event(), threading.Event()
    serving = serve(wait_function(started, release), max_streams=1)
    answers = []
    first = threading.Thread(target=lambda: answers.extend(call_same(channel(serving.target), [5])))
    first.start()
    assert started.wait(20)
    [(envelope, _)] = execute(channel(serving.target), opening("same"))
    error = envelope.error
    assert (error.code, error.kind, error.retryable) == ("OVERLOADED", pb.Error.KIND_WORKER, True)
    assert error.retry_after.ToSeconds() == 1
    assert serving.metric("udf_streams_rejected_total", code="OVERLOADED") == 1
    release.set()
    first.join(20)
    assert answers == [5]


def test_a_draining_server_finishes_what_it_has_and_takes_nothing_new(serve, channel):
    started, release = threading.Event(), threading.Event()
    serving = serve(wait_function(started, release))
    answers = []
    first = threading.Thread(target=lambda: answers.extend(call_same(channel(serving.target), [5])))
    first.start()
    assert started.wait(20)
    stopping = asyncio.run_coroutine_threadsafe(serving.server.stop(20), serving.loop)
    while not serving.server.service.draining:
        threading.Event().wait(0.002)
    [(envelope, _)] = execute(channel(serving.target), opening("same"))
    assert (envelope.error.code, envelope.error.retryable) == ("SHUTTING_DOWN", True)
    release.set()
    stopping.result(20)
    first.join(20)
    assert answers == [5]


def test_a_stream_that_outlasts_the_drain_is_cut_off(serve, channel):
    started, release = threading.Event(), threading.Event()
    serving = serve(wait_function(started, release))
    failures = []

    def call():
        try:
            call_same(channel(serving.target), [5])
        except grpc.RpcError as error:
            failures.append(error.code())

    first = threading.Thread(target=call)
    first.start()
    assert started.wait(20)
    serving.stop(drain_seconds=0.05)
    first.join(20)
    release.set()
    assert failures[0] in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def test_stopping_twice_is_stopping_once(serve):
    serving = serve(same)
    serving.stop()
    serving.stop()


async def test_a_server_loads_the_plugins_of_its_configuration(plugin):
    path = plugin("import udf_server as udf\n@udf.scalar\ndef one() -> int:\n    return 1\n")
    config = ServerConfig(port=0, metrics_port=0, entry_points=False, plugin=(path,))
    async with running_server(config) as server:
        assert [function.spec.key for function in server.registry] == ["one@1"]


async def test_a_plugin_that_cannot_be_imported_stops_the_start(plugin):
    config = ServerConfig(port=0, metrics_port=0, entry_points=False, plugin=(plugin("1 / 0"),))
    with pytest.raises(PluginImportError):
        Server(config)


async def test_a_server_that_never_started_may_be_stopped():
    await Server(ServerConfig(), Registry([])).stop()


async def test_a_server_that_was_prepared_and_does_not_listen_stops():
    server = Server(ServerConfig(port=0, metrics_port=0), Registry([]))
    await server.prepare()
    port = int(server.metrics_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20):
        pass
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=20)


def test_a_lost_client_frees_the_stream(serve, channel):
    started, release = threading.Event(), threading.Event()
    serving = serve(wait_function(started, release))
    opened = threading.Event()

    def requests():
        yield opening("same")
        opened.wait(20)
        yield batch(0, 0, [1])
        release.wait(20)

    lost = channel(serving.target).stream_stream(f"/{SERVICE_NAME}/Execute")(requests())
    next(lost)
    opened.set()
    assert started.wait(20)
    lost.cancel()
    asyncio.run_coroutine_threadsafe(serving.server.service.wait_idle(), serving.loop).result(20)
    release.set()
    assert serving.metric("udf_rows_in_flight", function="same", version="1") == 0


def test_a_function_without_arguments_gets_batches_without_data(serve, channel):
    @udf.scalar(deterministic=False)
    async def one() -> int:
        return 1

    empty = pa.schema([])
    rows = encode(pb.ExecuteRequest(batch=pb.Batch(rows=3)))
    answers = execute(channel(serve(one).target), opening("one", arguments=write_schema(empty)), rows, finish())
    assert answers[-1].envelope.finished.counts.rows_ok == 3


def test_a_server_without_functions_warns(serve, caplog):
    def warned():
        return [record.message for record in caplog.records if record.message.startswith("no function is served")]

    serve(same)
    assert warned() == []
    serve()
    assert len(warned()) == 1
