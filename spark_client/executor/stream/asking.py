"""LoadQuestion asks two servers at once what they have to do, while rows are sent and received."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import grpc

from remote_udf.v1 import service_pb2
from spark_client.base.server_load import ServerLoad

__all__ = ["LoadCall", "LoadQuestion"]

LoadCall: TypeAlias = "grpc.CallFuture[service_pb2.GetProgressResponse]"


class LoadQuestion:
    """Calls of GetProgress that run. Use it on one thread."""

    def __init__(self, calls: Mapping[str, LoadCall], ended: Callable[[Mapping[str, ServerLoad]], object]) -> None:
        """`calls` has a call by the address of each server. `ended` gets the loads of those that have answered."""
        self._calls, self._ended = calls, ended

    @property
    def done(self) -> bool:
        """Whether every server has answered or failed."""
        return all(call.done() for call in self._calls.values())

    def wait(self, seconds: float) -> None:
        """Wait up to this time for each answer. Later answers still count."""
        for call in self._calls.values():
            try:
                call.result(timeout=seconds)
            except grpc.FutureTimeoutError:
                return
            except (grpc.RpcError, grpc.FutureCancelledError):
                continue

    def answers(self) -> Mapping[str, ServerLoad]:
        """The loads by address, of the servers that have told one. Call once, when it is done."""
        found: dict[str, ServerLoad] = {}
        for address, call in self._calls.items():
            try:
                response = call.result()
            except (grpc.RpcError, grpc.FutureCancelledError):
                continue  # an older server, or one that is gone: whoever sends rows to it finds out
            if response.HasField("load") and (load := ServerLoad.read(response.load)) is not None:
                found[address] = load
        self._ended(found)
        return found

    def cancel(self) -> None:
        """End the calls. Safe to call twice."""
        for call in self._calls.values():
            call.cancel()
        self._ended({})
