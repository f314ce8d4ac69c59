"""Streams with a test clock, streams of real servers, and the responses of scripted ones; used with `scripted`."""

import udf_server as udf
from spark_client.base.transport import TransportLost
from spark_client.executor.stream.transport import transport_for
from tests.spark_client.scripted import (
    Clock,
    chunk_of,
    everything,
    opened,
    refused,
    stream_of,
)


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


def timed(call, transport, clock=None, **arguments):
    """A stream on a clock that advances only when a thread sleeps."""
    clock = clock or Clock()
    return stream_of(call, transport, clock=clock, sleep=clock.sleep, **arguments), clock


def answering(*responses, then=None, **options):
    """A script: opens, waits for the first batch, sends these responses, and then runs `then` with the requests."""

    def script(requests):
        next(requests)
        yield opened(**options)
        next(requests)
        yield from responses
        if then is not None:
            yield from then(requests)

    return script


def lost(_):
    raise TransportLost("UNAVAILABLE: the machine is gone")
    yield


def to_the_end(requests):
    for message in requests:
        if message.envelope.HasField("finish"):
            return


def refusing(**arguments):
    """A script: a server that refuses to open."""

    def script(requests):
        next(requests)
        yield refused(**arguments)

    return script


def rows_through(call, values, chunk):
    """Sends the values to the call's target, `chunk` at a time; returns the outcomes by row, and the statistics."""
    stream = stream_of(call, transport_for(call.config))
    try:
        for first in range(0, len(values), chunk):
            stream.submit(chunk_of(values[first : first + chunk], first))
        found = everything(stream)
        stream.finish()
        return found, stream.statistics
    finally:
        stream.close()
