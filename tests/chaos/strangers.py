"""Clients that open streams and leave them idle."""

import threading
import urllib.request

import grpc
import pyarrow as pa

from remote_udf.arrow import write_schema
from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb

__all__ = ["Strangers", "open_streams"]

EXECUTE = "/remote_udf.v1.UdfService/Execute"


class Strangers:
    """Idle streams of one function; every second one does not even send Open."""

    def __init__(self, function):
        arguments = write_schema(pa.schema([("x", pa.int64())]))
        self._opening = encode(
            pb.ExecuteRequest(open=pb.Open(protocol_version=1, function=function, arguments=arguments))
        )
        self._end = threading.Event()
        self._channels, self._calls = {}, []
        self.opened = 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._end.set()
        for channel in self._channels.values():
            channel.close()

    def open(self, target):
        """Open one more stream."""
        if target not in self._channels:
            self._channels[target] = grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
        silent = self.opened % 4 >= 2
        self.opened += 1

        def requests():
            if not silent:
                yield self._opening
            self._end.wait()

        call = self._channels[target].stream_stream(EXECUTE)(requests())
        self._calls.append((call, silent))

    def wait(self):
        """Wait until the server has answered the streams that sent Open."""
        for call, silent in self._calls:
            if not silent:
                next(call)


def open_streams(server):
    """The number of open streams of a server, by its metrics."""
    with urllib.request.urlopen(server.metrics + "/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("udf_streams_open"))
