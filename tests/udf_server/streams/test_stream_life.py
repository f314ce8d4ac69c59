"""The objects of a stream are released when it ends, however it ends."""

import gc
import sys
import weakref

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.shared_memory import SharedMemoryClosed, attach, offer_memory
from spark_client.executor.stream.transport import transport_for
from tests.leftovers import mapped
from tests.spark_client.scripted import call_of, chunk_of, stream_of
from tests.udf_server.talk import Talk, batch, eventually, finish


@udf.scalar
async def in_a_loop(x: int) -> int:
    return _checked(x)


@udf.scalar
def in_threads(x: int) -> int:
    return _checked(x)


@udf.scalar(vectorized=True)
def vectorized(x: pa.Int64Array) -> pa.Int64Array:
    return [_checked(each) for each in x.to_pylist()]


@udf.scalar(vectorized=True)
async def vectorized_in_a_loop(x: pa.Int64Array) -> pa.Int64Array:
    return [_checked(each) for each in x.to_pylist()]


def _checked(x):
    if x == 1_000:
        raise udf.RetryableError("again")
    if x == 2_000:
        raise ValueError("never")
    return x


KINDS = [in_a_loop, in_threads, vectorized, vectorized_in_a_loop]
ENDS = {"well": finish(), "for a lost client": None, "for a violation": batch(7, 0, [1])}


@pytest.fixture
def uncollected():
    """Without the collector, which runs rarely in a server: what is in a cycle stays."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("values", [[1], [1_000, 2_000, 3]], ids=["values", "errors"])
@pytest.mark.parametrize("function", KINDS, ids=lambda function: function.spec.name)
async def test_a_stream_is_freed_when_it_ends_though_nothing_is_collected(function, values, end, uncollected):
    async with Talk(function) as talk:
        await talk.open(function.spec.name, options={"fixed-delay": "1 ms", "max-attempts": "3"})
        talk.send(batch(0, 0, values))
        assert (await talk.receive()).result.rows == len(values)
        stream = weakref.ref(talk.running)
        runner = weakref.ref(talk.running.call.runner)
        talk.send(ENDS[end])
        await talk.ended()
        await eventually(lambda: stream() is None and runner() is None)


linux = pytest.mark.skipif(sys.platform != "linux", reason="memfd is of Linux")


@linux
def test_memory_that_is_closed_is_unmapped_and_gives_and_takes_nothing():
    before, offered = mapped(), offer_memory()
    theirs = attach(offered.offer, 1 << 20)
    ours = offered.accepted()
    offered.close()
    place = ours.put([bytes(100_000)])
    for end in (ours, theirs):
        end.close()
        end.close()
    assert ours.put([bytes(100_000)]) is None
    with pytest.raises(SharedMemoryClosed):
        theirs.take(place)
    assert mapped() == before


@pytest.mark.slow
@pytest.mark.long
@linux
def test_the_memory_of_a_server_does_not_grow_with_the_streams_of_clients_on_its_host(serve):
    """In pages that are mapped, which this process counts for both ends."""
    serving = serve(vectorized)
    call = call_of(vectorized, serving.target)
    before = most = mapped()
    for _ in range(40):
        stream = stream_of(call, transport_for(call.config))
        stream.submit(chunk_of(range(3_000)))
        while stream.unanswered:
            stream.receive()
        most = max(most, mapped())
        stream.finish()
    assert serving.metric("udf_streams_shared_memory_total", function="vectorized", version="1") == 40
    # One of this end's, one of the server's, and the server's of streams that are just about to end.
    assert 1 <= most - before < 8
