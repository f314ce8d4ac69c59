"""Channels of this process to its servers: one per endpoint. A channel that fails is closed.

Spark forks its Python workers from a daemon, and gRPC's threads do not survive a fork (grpc: doc/fork_support.md).
So a channel belongs to the process that creates it, on first use. A channel that fails is not used
again: gRPC would continue to connect, and to write to standard error, until the process ends.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import grpc

from spark_client.base.security import Security
from spark_client.executor.stream.endpoints import Endpoint

__all__ = ["Channel", "Channels", "FutureAnswer", "GrpcStream", "process_channels"]

CHANNEL_OPTIONS = (
    # The server limits the size of messages; the client accepts every size.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Keepalive detects a server that hangs or whose network is cut.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Without this option, gRPC waits a minute for the answer to the ping and ignores the line above.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
    # Otherwise a new channel gets the connection of one that failed and still has calls.
    ("grpc.use_local_subchannel_pool", 1),
)


AnswerT_co = TypeVar("AnswerT_co", covariant=True)


class GrpcCall(Protocol):
    """What gRPC returns for a call that has begun."""

    def add_callback(self, callback: Callable[[], None], /) -> bool: ...
    def cancel(self) -> bool: ...


class GrpcStream(GrpcCall, Iterator[AnswerT_co], Protocol[AnswerT_co]):
    """A stream that has begun: its answers."""


class FutureAnswer(GrpcCall, Protocol[AnswerT_co]):
    """A call with one answer that has begun."""

    def done(self) -> bool: ...
    def result(self, timeout: float | None = None) -> AnswerT_co: ...
    def add_done_callback(self, fn: "Callable[[Any], None]", /) -> None: ...


CallT = TypeVar("CallT", bound=GrpcCall)


@dataclass(eq=False)
class Channel:
    """One connection to an endpoint, and the calls on it."""

    connection: grpc.Channel
    calls: set[GrpcCall] = field(default_factory=set)
    """Those that have not ended. They must not be left to the collector: a call that has not ended is cancelled when it
    is collected, for which it needs a lock. The collector may run while gRPC begins another call on this channel, and a
    thread that has that lock then waits for the channel, without end."""

    def add(self, call: GrpcCall) -> None:
        """Keep a call until it ends."""
        self.calls.add(call)
        if not call.add_callback(functools.partial(self.calls.discard, call)):
            self.calls.discard(call)  # it has ended already


class Channels:
    """The channels of one process. Safe to use from any thread."""

    def __init__(self, connect: "Callable[[Endpoint, Security], grpc.Channel] | None" = None) -> None:
        self._connect = connect or _connected
        self._lock = threading.Lock()
        self._usable: dict[tuple[str, str, Security], tuple[tuple[int, ...], Channel]] = {}
        self._retired: list[Channel] = []
        """Channels that get no new calls. Each is closed once its last call has ended."""

    def start(
        self, endpoint: Endpoint, security: Security, begin: Callable[[grpc.Channel], CallT]
    ) -> tuple[Channel, CallT]:
        """Start a call with `begin` on the channel to the endpoint. Returns the channel, for `failed`, and the call.

        The channel uses the current certificates. Raises AccessDenied.
        """
        key, stamp = (endpoint.address, endpoint.name, security), security.stamp()
        with self._lock:
            known = self._usable.get(key)
            if known is not None and known[0] != stamp:
                self._retired.append(self._usable.pop(key)[1])
                known = None
            if known is None:
                known = self._usable[key] = (stamp, Channel(self._connect(endpoint, security)))
            channel = known[1]
            # The lock is held, because another thread may close a channel without calls.
            call = begin(channel.connection)
            channel.add(call)
        self._close_unused()
        return channel, call

    def failed(self, channel: Channel) -> None:
        """Retire a channel on which a call was lost. The next call to its endpoint gets a new channel."""
        with self._lock:
            for key, (_, usable) in self._usable.items():
                if usable is channel:
                    del self._usable[key]
                    self._retired.append(channel)
                    break
        self._close_unused()

    def unneeded(self, channel: Channel) -> None:
        """Close a channel unless it has calls, because its endpoint gets no stream."""
        with self._lock:
            if channel.calls:
                return
        self.failed(channel)

    def _close_unused(self) -> None:
        with self._lock:
            unused = [channel for channel in self._retired if not channel.calls]
            self._retired = [channel for channel in self._retired if channel not in unused]
        for channel in unused:
            channel.connection.close()


def _connected(endpoint: Endpoint, security: Security) -> grpc.Channel:
    credentials = security.credentials()
    if credentials is None:
        return grpc.insecure_channel(endpoint.address, options=CHANNEL_OPTIONS)
    name = security.server_name or endpoint.name
    # The certificate is for the name, but the connection is to one of its addresses.
    named = (("grpc.ssl_target_name_override", name),) if name else ()
    return grpc.secure_channel(endpoint.address, credentials, options=(*CHANNEL_OPTIONS, *named))


_channels: dict[int, Channels] = {}
_lock = threading.Lock()


def process_channels() -> Channels:
    """The channels of this process."""
    with _lock:
        return _channels.setdefault(os.getpid(), Channels())
