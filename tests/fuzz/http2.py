"""Peer: one HTTP/2 connection that violates the protocol if requested."""

import asyncio
import contextlib
import struct
import time
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

__all__ = ["Peer", "Stream"]

EXECUTE = "/remote_udf.v1.UdfService/Execute"
WINDOW = 1 << 20
SEND_SECONDS = 1.0
"""How long a peer tries to send data that the server does not read: back-pressure is no fault."""


@dataclass
class Stream:
    """The answers to one stream, and how it ended."""

    number: int
    words: list[str] = field(default_factory=list)
    answers: bytearray = field(default_factory=bytearray)
    begun: bool = False
    """Whether the server has begun to answer. Flow control does not hold that up."""
    status: str | None = None
    """gRPC's status, if the server has ended the stream regularly."""
    reset: bool = False
    left: bool = False
    """Whether the peer itself has ended it."""
    malformed: bool = False
    """Whether the peer has violated gRPC's framing, which gRPC answers with INTERNAL."""

    @property
    def ended(self):
        return self.status is not None or self.reset or self.left

    def messages(self):
        """The messages that the server has sent completely."""
        position = 0
        while position + 5 <= len(self.answers):
            (size,) = struct.unpack_from(">I", self.answers, position + 1)
            if position + 5 + size > len(self.answers):
                return
            yield bytes(self.answers[position + 5 : position + 5 + size])
            position += 5 + size


class Peer:
    """`async with` connects and reads answers. Sending waits for flow control for a limited time."""

    def __init__(self, port, headers=(), *, reads="all", window=WINDOW):
        """`reads` is "all", "slowly" or "nothing"; with "nothing" the flow control window is never increased."""
        self._port, self._headers, self._reads = port, list(headers), reads
        config = h2.config.H2Configuration(
            client_side=True, header_encoding="utf-8", validate_outbound_headers=False, normalize_outbound_headers=False
        )
        self._http2 = h2.connection.H2Connection(config)
        given = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window, h2.settings.SettingCodes.ENABLE_PUSH: 0}
        self._http2.local_settings = h2.settings.Settings(client=True, initial_values=given)
        self.streams: dict[int, Stream] = {}
        self.closed = asyncio.Event()
        """Set when the server, or its kernel, has closed the connection."""
        self._changed = asyncio.Event()

    async def __aenter__(self):
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._http2.initiate_connection()
        self._http2.increment_flow_control_window(WINDOW)
        self._flush()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *exception):
        self._reading.cancel()
        await asyncio.wait([self._reading])
        for stream in self.streams.values():
            stream.left = True
        self._writer.transport.abort()

    def open(self, path=EXECUTE, *more):
        """Open a stream; None if the connection accepts no more."""
        number = self._http2.get_next_available_stream_id()
        headers = [
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
            ("content-type", "application/grpc"), ("te", "trailers"), *self._headers, *more,
        ]  # fmt: skip
        try:
            self._http2.send_headers(number, headers)
        except h2.exceptions.ProtocolError:
            return None
        self.streams[number] = Stream(number)
        self._flush()
        return self.streams[number]

    async def send(self, stream, data, piece=1 << 14, pause=0.0):
        """Send bytes of a stream in pieces, until the server stops reading them or ends the stream."""
        view, until = memoryview(data), time.monotonic() + SEND_SECONDS
        try:
            while view and not stream.ended and not self.closed.is_set():
                room = min(self._http2.local_flow_control_window(stream.number), piece, len(view), 1 << 14)
                if room <= 0:
                    self._changed.clear()
                    async with asyncio.timeout(max(until - time.monotonic(), 0)):
                        await self._changed.wait()
                    continue
                self._http2.send_data(stream.number, bytes(view[:room]))
                view = view[room:]
                self._flush()
                async with asyncio.timeout(SEND_SECONDS):
                    await self._writer.drain()
                await asyncio.sleep(pause)
        except (h2.exceptions.ProtocolError, OSError, TimeoutError):
            return

    def half_close(self, stream):
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self._http2.end_stream(stream.number)
            self._flush()

    def reset(self, stream, code=h2.errors.ErrorCodes.CANCEL):
        stream.left = True
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self._http2.reset_stream(stream.number, code)
            self._flush()

    def widen(self, window):
        """Let the server send more data in every stream."""
        self._http2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._flush()

    async def raw(self, data):
        """Send arbitrary bytes."""
        with contextlib.suppress(OSError, TimeoutError):
            self._flush()
            self._write(data)
            async with asyncio.timeout(SEND_SECONDS):
                await self._writer.drain()

    async def wait(self, stream, seconds):
        """Whether the server ends the stream or closes the connection within this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._until(lambda: stream.ended)
        return stream.ended or self.closed.is_set()

    async def answered(self, stream):
        """Wait for an answer in the stream, or for its end."""
        await self._until(lambda: stream.answers or stream.ended)

    async def _until(self, condition):
        while not condition() and not self.closed.is_set():
            self._changed.clear()
            await self._changed.wait()

    def _flush(self):
        self._write(self._http2.data_to_send())

    def _write(self, data):
        if not self._writer.transport.is_closing():
            self._writer.write(data)

    async def _read(self):
        try:
            while data := await self._reader.read(1 << 16):
                for event in self._http2.receive_data(data):
                    self._take(event)
                self._flush()
                self._changed.set()
                if self._reads != "all":
                    await asyncio.sleep(0.2)
        except (OSError, h2.exceptions.ProtocolError):
            pass
        finally:
            self.closed.set()
            self._changed.set()

    def _take(self, event):
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, h2.events.DataReceived):
            stream.answers += event.data
            if self._reads != "nothing" and event.flow_controlled_length:
                self._http2.acknowledge_received_data(event.flow_controlled_length, stream.number)
        elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
            stream.begun, found = True, dict(event.headers)
            if "grpc-status" in found:
                stream.status = found["grpc-status"]
                stream.words.append(f"status {stream.status} {found.get('grpc-message', '')[:200]}")
        elif isinstance(event, h2.events.StreamReset):
            stream.reset = True
            stream.words.append(f"reset {event.error_code}")
