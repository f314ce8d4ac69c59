"""Rows that reach a server on the same host through shared memory: the same outcomes, and nothing to break."""

import dataclasses
import sys
import threading

import grpc
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import udf_server as udf
from remote_udf.arrow import write_schema
from remote_udf.errors import ErrorCode
from remote_udf.messages import encode, read_response
from remote_udf.outcomes import RowError
from remote_udf.shared_memory import AREA_BYTES, PAGE, OfferedMemory
from remote_udf.v1 import message_pb2 as pb
from spark_client.executor.stream.transport import transport_for
from tests.spark_client.scripted import X, call_of, chunk_of, everything, stream_of
from udf_server.streams.service import SERVICE_NAME

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd is of Linux")
CHUNK = 8_000
"""Rows of a message."""


@udf.scalar(vectorized=True)
def plus_one(x: pa.Int64Array) -> pa.Int64Array:
    return pc.add(x, 1)


@udf.scalar
def halved(x: int) -> int:
    if x % 2:
        raise ValueError("odd")
    return x // 2


@udf.scalar(vectorized=True)
def repeated(x: pa.Int64Array) -> pa.StringArray:
    return pa.array(["y" * each for each in x.to_pylist()])


def answers(target, function, rows, *, shared_memory=True, **options):
    call = call_of(function, target, **options)
    call = dataclasses.replace(call, config=dataclasses.replace(call.config, shared_memory=shared_memory))
    stream = stream_of(call, transport_for(call.config))
    found = {}
    for first in range(0, len(rows), CHUNK):
        stream.submit(chunk_of(rows[first : first + CHUNK], first))
        if not stream.has_room():
            found |= everything(stream)
    found |= everything(stream)
    statistics = stream.statistics
    stream.finish()
    return found, statistics


def compared(found):
    """Outcomes by row. Which of the errors have a traceback is a matter of which came first."""
    return {
        row: dataclasses.replace(value, traceback="") if isinstance(value, RowError) else value
        for row, value in found.items()
    }


def shared_streams(serving, function):
    return serving.metric("udf_streams_shared_memory_total", function=function, version="1")


@pytest.mark.slow
@pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
def test_outcomes_are_the_same_with_and_without_shared_memory(serve, output_mode):
    serving = serve(plus_one, halved)
    rows = range(3 * CHUNK)
    for function in (plus_one, halved):
        name = function.spec.name
        with_it, statistics = answers(serving.target, function, rows, output_mode=output_mode)
        assert shared_streams(serving, name) == 1
        without, others = answers(serving.target, function, rows, shared_memory=False, output_mode=output_mode)
        assert shared_streams(serving, name) == 1
        assert compared(with_it) == compared(without)
        assert statistics.bytes_out == others.bytes_out > 8 * len(rows)
    assert with_it[6] == 3 and with_it[7].code is ErrorCode.FUNCTION_ERROR


def test_bytes_in_shared_memory_are_counted_as_those_in_messages(serve):
    counted = []
    for shared_memory in (True, False):
        serving = serve(plus_one)
        answers(serving.target, plus_one, range(20_000), shared_memory=shared_memory)
        labels = {"function": "plus_one", "version": "1"}
        counted.append([serving.metric("udf_bytes_total", direction=way, **labels) for way in ("in", "out")])
    assert counted[0] == [pytest.approx(each, abs=200) for each in counted[1]]
    assert min(counted[0]) > 160_000


def test_a_server_that_is_configured_so_takes_no_memory_of_callers(serve):
    serving = serve(plus_one, shared_memory=False)
    found, _ = answers(serving.target, plus_one, range(20_000))
    assert found[19_999] == 20_000
    assert shared_streams(serving, "plus_one") == 0


def test_a_unix_socket_is_of_this_host_too(serve, tmp_path):
    serving = serve(plus_one, unix_socket=str(tmp_path / "socket"))
    found, _ = answers(serving.target, plus_one, range(20_000))
    assert found[19_999] == 20_000
    assert shared_streams(serving, "plus_one") == 1


def test_results_that_do_not_fit_the_memory_go_inside_their_messages(serve):
    serving = serve(repeated)
    found, statistics = answers(serving.target, repeated, [AREA_BYTES + 1, 3, AREA_BYTES // 2])
    assert [len(found[row]) for row in range(3)] == [AREA_BYTES + 1, 3, AREA_BYTES // 2]
    assert statistics.bytes_in > AREA_BYTES


# What a caller may do with it.


def exchange(serving, offer, place):
    """The responses to an offer and to a batch said to be at a place, of a client that is no client of ours."""
    request = pb.Open(protocol_version=1, function="plus_one", arguments=write_schema(X), shared_memory=offer)
    opened, over = threading.Event(), threading.Event()

    def requests():
        yield encode(pb.ExecuteRequest(open=request))
        opened.wait(20)
        yield encode(pb.ExecuteRequest(batch=pb.Batch(rows=1), shared=place))
        over.wait(20)  # a client that closes its side wants no answer

    with grpc.insecure_channel(serving.target) as channel:
        found = []
        for response in channel.stream_stream(f"/{SERVICE_NAME}/Execute")(requests()):
            found.append(read_response(response).envelope)
            opened.set()
        over.set()
        return found


def test_memory_that_cannot_be_opened_is_done_without(serve):
    serving = serve(plus_one)
    offered = OfferedMemory()
    offered.close()
    opened, error = exchange(serving, offered.offer, pb.SharedData(position=PAGE, bytes=64))
    assert not opened.opened.shared_memory
    assert error.error.code == ErrorCode.PROTOCOL_VIOLATION
    assert "was not negotiated" in error.error.message


@pytest.mark.parametrize(
    ("position", "size", "why"),
    [(0, 64, "at 0 of shared memory"), (PAGE, 1 << 40, "shared memory"), (PAGE, 1 << 20, "has 0")],
)
def test_bytes_that_are_no_batch_end_the_stream_and_not_the_server(serve, position, size, why):
    serving = serve(plus_one)
    offered = OfferedMemory()
    opened, *_, error = exchange(serving, offered.offer, pb.SharedData(position=position, bytes=size))
    offered.close()
    assert opened.opened.shared_memory
    assert error.error.code == ErrorCode.PROTOCOL_VIOLATION
    assert why in error.error.message
    assert answers(serving.target, plus_one, [1])[0] == {0: 2}
