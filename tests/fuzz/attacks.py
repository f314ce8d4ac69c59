"""Attacks: each is a list of steps drawn from random numbers, which it can describe and execute against a server."""

import asyncio
import contextlib
import random
import socket
import struct
from dataclasses import dataclass

from remote_udf.errors import ErrorCode, ProtocolViolation
from remote_udf.messages import read_response
from tests.fuzz.hostile_messages import Conversation
from tests.fuzz.http2 import EXECUTE, Peer, Stream

__all__ = ["ATTACKS", "Target"]

END_SECONDS = 12.0
"""The time within which the server must end a stream of an idle client: idle_seconds, a row's timeout, and slack."""
SAY_SECONDS = 1.5
"""The time after which a stream stops sending, even if messages are left."""
INTERNAL, UNKNOWN = "13", "2"
"""gRPC's status codes of a server that failed. If gRPC's own framing is violated, gRPC itself answers INTERNAL."""
HEADERS = (
    ("grpc-timeout", "1n"), ("grpc-timeout", "50m"), ("grpc-timeout", "99999999H"), ("grpc-encoding", "gzip"),
    ("grpc-encoding", "nonsense"), ("grpc-accept-encoding", "gzip,deflate"), ("authorization", "Bearer wrong"),
    ("traceparent", "00-" + "f" * 50), ("content-type", "text/html"), ("x-" + "y" * 100, "z" * 4_000), ("x-bin", "!!"),
)  # fmt: skip
MALFORMED = ("grpc-encoding", "x-bin")
"""The headers that gRPC itself may answer with INTERNAL."""


@dataclass(frozen=True)
class Target:
    """The attacked server: its ports, and the headers of a caller that it accepts."""

    grpc_port: int
    http_port: int
    headers: tuple[tuple[str, str], ...]


class Streams:
    """Streams with invalid messages, sent whole or byte by byte, read or unread, ended, cut or left idle."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._reads = draw.choice(("all",) * 4 + ("slowly", "nothing"))
        self._window = draw.choice((0, 1, 100) + (1 << 16, 1 << 20) * 3)
        self._plans = [_Plan(draw) for _ in range(draw.choice((1, 1, 2, 6, 20)))]
        self._at_once = len(self._plans) > 2 or draw.random() < 0.5
        self.words = [
            f"{len(self._plans)} streams {'at once' if self._at_once else 'in turn'}, "
            f"reads {self._reads}, window {self._window}:"
        ]
        self.words += [f"  {word}" for plan in self._plans for word in plan.words]

    @property
    def ends(self) -> list[str]:
        """How its streams ended, available after `run`."""
        return [plan.end for plan in self._plans]

    async def run(self, target: Target) -> list[str]:
        problems: list[str] = []
        listens = self._reads == "all" and self._window >= 1 << 16
        async with Peer(target.grpc_port, target.headers, reads=self._reads, window=self._window) as peer:
            if self._at_once:
                async with asyncio.TaskGroup() as group:
                    for plan in self._plans:
                        group.create_task(plan.run(peer, problems, listens=listens))
            else:
                for plan in self._plans:
                    await plan.run(peer, problems, listens=listens)
        return problems


class _Plan:
    """The messages of one stream, how they are sent, and how the stream ends."""

    def __init__(self, draw: random.Random) -> None:
        self._said = Conversation(draw).said
        self._header = draw.choice(HEADERS) if draw.random() < 0.15 else None
        self._path = EXECUTE if draw.random() < 0.9 else draw.choice((
            "/remote_udf.v1.UdfService/ListFunctions", "/remote_udf.v1.UdfService/GetProgress",
            "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check",
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/nothing/here", "",
        ))  # fmt: skip
        self._silent = draw.random() < 0.05
        self._piece, self._pause = draw.choice(((1 << 14, 0.0), (1 << 14, 0.0), (1_000, 0.0), (1, 0.001), (7, 0.01)))
        self._frame = draw.choice(("whole",) * 9 + ("compressed", "longer", "shorter", "too long", "short"))
        self._waits = draw.random() < 0.7
        self._end = draw.choice(("half-close",) * 4 + ("cancel",) * 3 + ("leave",) * 2 + ("listen",))
        self.words = [
            f"{self._path} {self._header or ''} in pieces of {self._piece} every {self._pause} s, "
            f"{'waits for Opened, ' if self._waits else ''}last frame {self._frame}, then {self._end}"
        ]
        self.end = "not begun"
        self.words += ["  says nothing"] if self._silent else [f"  {word}" for word, _ in self._said]

    async def run(self, peer: Peer, problems: list[str], *, listens: bool) -> None:
        stream = peer.open(self._path, *([self._header] if self._header else []))
        if stream is None:
            return
        stream.malformed = self._header is not None and self._header[0] in MALFORMED
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(SAY_SECONDS):
                await self._say(peer, stream, listens=listens)
        if self._end == "half-close":
            peer.half_close(stream)
        elif self._end == "cancel":
            peer.reset(stream)
        # A stream that was sent completely, and whose answers are read, must end.
        due = self._end in ("half-close", "listen") and listens and self._path == EXECUTE
        if due and not await peer.wait(stream, END_SECONDS):
            problems.append(f"a stream does not end within {END_SECONDS:g} s: {'; '.join(self.words)}")
        problems += [f"{problem}: {'; '.join(self.words)}" for problem in _wrong(stream)]
        self.end = _end_of(stream)

    async def _say(self, peer: Peer, stream: Stream, *, listens: bool) -> None:
        if self._silent:
            return
        messages = [message for _, each in self._said for message in each]
        for number, message in enumerate(messages):
            last = number == len(messages) - 1
            flag, size = 0, len(message)
            if last and self._frame != "whole":
                stream.malformed = True
                flag = self._frame == "compressed"
                size = {"longer": size + 1_000, "shorter": size // 2, "too long": 0xFFFFFFFF}.get(self._frame, size)
                message = message[: size // 2] if self._frame == "short" else message
            await peer.send(stream, struct.pack(">BI", flag, size) + message, self._piece, self._pause)
            if not number and self._waits and listens:
                await peer.answered(stream)


def _end_of(stream: Stream) -> str:
    """The kind of the last message or the code of its error; without a message, gRPC's status."""
    end = f"gRPC's {stream.status}" if stream.status not in (None, "0") else "reset" if stream.reset else "no answer"
    for message in stream.messages():
        with contextlib.suppress(ProtocolViolation):
            answer, _ = read_response(message)
            end = answer.error.code or answer.WhichOneof("response") or end
    return end


def _wrong(stream: Stream) -> list[str]:
    """Answers that the server must never send."""
    problems = []
    if stream.status == UNKNOWN or (stream.status == INTERNAL and not stream.malformed):
        problems.append(f"gRPC's {' '.join(stream.words)}")
    for message in stream.messages():
        try:
            answer, _ = read_response(message)
        except ProtocolViolation:
            continue  # an answer of another service
        if answer.WhichOneof("response") == "error":
            error = answer.error
            if error.code == ErrorCode.INTERNAL or error.code not in set(ErrorCode):
                problems.append(f"error {error.code}: {error.message[:500]} {error.traceback[-1500:]}")
    return problems


class Frames:
    """Invalid HTTP/2: floods of small frames, malformed frames, headers without an end."""

    def __init__(self, draw: random.Random) -> None:
        self._steps = [self._step(draw) for _ in range(draw.choice((1, 2, 5)))]
        self._reads = draw.choice(("all", "nothing"))
        self.words = [f"frames, reads {self._reads}: " + ", ".join(word for word, _ in self._steps)]

    @staticmethod
    def _step(draw: random.Random) -> tuple[str, bytes | int]:
        count, stream = draw.choice((1, 100, 2_000)), draw.choice((0, 1, 2, 3, 0x7FFFFFFF))
        match draw.randrange(9):
            case 0:
                return f"{count} pings", _frame(6, 0, 0, bytes(8)) * count
            case 1:
                return f"{count} settings", _frame(
                    4, 0, 0, struct.pack(">HI", draw.choice((1, 3, 4, 5, 99)), 100)
                ) * count
            case 2:
                return f"{count} window updates of {stream}", _frame(8, 0, stream, struct.pack(">I", 1)) * count
            case 3:
                return f"{count} empty data frames of {stream}", _frame(0, 0, stream, b"") * count
            case 4:
                begun = _frame(1, 0, 1, b"\x00\x01a\x01b")
                return f"headers with {count} continuations", begun + _frame(9, 0, 1, b"\x00\x01a\x01b" * 100) * count
            case 5:
                return f"{count} frames of type 77", _frame(77, 255, stream, bytes(10)) * count
            case 6:
                return "noise", draw.randbytes(draw.choice((10, 10_000)))
            case 7:
                return "a frame of 16 MB, begun", struct.pack(">I", 0xFFFFFF)[1:] + b"\x00\x00" + struct.pack(">I", 1)
            case _:
                return f"{min(count, 300)} streams opened and reset", min(count, 300)

    ends = ()

    async def run(self, target: Target) -> list[str]:
        async with Peer(target.grpc_port, target.headers, reads=self._reads) as peer:
            for _, what in self._steps:
                if peer.closed.is_set():
                    break
                if isinstance(what, bytes):
                    await peer.raw(what)
                    continue
                for _ in range(what):
                    if (stream := peer.open()) is None:
                        break
                    peer.reset(stream)
                await peer.raw(b"")
            await asyncio.sleep(0.2)
        return []


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


class Connections:
    """TCP connections that send nothing, an incomplete request, or another protocol, to either port."""

    BEGINNINGS = (
        b"", b"\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2.0\r\n", b"GET /metrics HTTP/1.1\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /try HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n{",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 100, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"A" * 70_000, b"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
    )  # fmt: skip

    def __init__(self, draw: random.Random) -> None:
        self._count = draw.choice((1, 10, 60))
        self._begins = draw.choice(self.BEGINNINGS)
        self._http = draw.random() < 0.5
        self._byte_by_byte = draw.random() < 0.3
        self._seconds = draw.choice((0.0, 0.2, 1.0))
        self.words = [
            f"{self._count} connections to the {'HTTP' if self._http else 'gRPC'} port that say {self._begins[:60]!r}"
            f"{' byte by byte' if self._byte_by_byte else ''} and stay for {self._seconds} s"
        ]

    ends = ()

    async def run(self, target: Target) -> list[str]:
        port = target.http_port if self._http else target.grpc_port
        opened = []
        try:
            with contextlib.suppress(OSError):
                for _ in range(self._count):
                    opened.append(await asyncio.open_connection("127.0.0.1", port))
                    _, writer = opened[-1]
                    writer.write(self._begins[:1] if self._byte_by_byte else self._begins)
            for place in range(1, min(len(self._begins), 100) if self._byte_by_byte else 0):
                for _, writer in opened:
                    if not writer.transport.is_closing():
                        writer.write(self._begins[place : place + 1])
                await asyncio.sleep(0.01)
            await asyncio.sleep(self._seconds)
        finally:
            for number, (_, writer) in enumerate(opened):
                if number % 2:  # end it by a reset
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
        return []


ATTACKS = (Streams, Streams, Streams, Streams, Frames, Connections)
