"""SharedMemory: memory of both ends of one stream on one host, so that batches need not go through a socket.

gRPC copies a batch several times and passes it to the kernel and back; here each end copies it once. The message
carries only its position (`message.proto`, SharedMemory and SharedData). Nothing waits for room: if there is
none, a batch is sent inside its message, as between hosts.

The two ends need not trust each other. Each decides alone where it writes, checks every position that it receives,
and copies the bytes before it examines them, so that they cannot change any more. The memory has no name in
a file system and cannot be shrunk, and the kernel frees it when both ends have closed it or have died.
"""

import contextlib
import hmac
import mmap
import os
import secrets
import stat
import sys
import threading
from pathlib import Path

import pyarrow as pa

from remote_udf.arrow import Buffers
from remote_udf.errors import ProtocolViolation
from remote_udf.v1 import message_pb2 as pb

if sys.platform == "linux":
    import fcntl
    import resource

__all__ = ["OfferedMemory", "SharedMemory", "SharedMemoryClosed", "SharedMemoryRefused", "attach", "offer_memory"]

AREA_BYTES = 16 << 20
"""Size of each end's area: four of a client's largest messages. Pages that are never written take no memory."""
MOST_BYTES = 64 << 20
"""Larger memory is not opened, because pages may be charged to the process that reads them first."""
LEAST_BYTES = 16 << 10
"""Fewer bytes are sent inside their message, where they cost about as much."""
TOKEN_BYTES = 32
PAGE = 4096
HEADER = 64
"""Size of the header of each place: its state, padded to Arrow's alignment."""
FREE, BUSY = 0, 1
NAME = "remote-udf"
_LINK = f"/memfd:{NAME} (deleted)"
"""The target that Linux shows for a descriptor of such memory."""


class SharedMemoryRefused(Exception):
    """The offered memory is not of this kind, or this process may not open it."""


class SharedMemoryClosed(Exception):
    """A read from memory whose stream has ended."""


class SharedMemory:
    """One end's view of the memory, until `close`. It is thread-safe."""

    def __init__(self, memory: mmap.mmap, *, client: bool, most: int | None = None) -> None:
        """`most` is the maximum number of bytes taken at once; by default the size of an area."""
        self._memory = memory
        self._view = memoryview(memory)
        area = (len(self._view) - PAGE) // 2
        first, second = (PAGE, PAGE + area), (PAGE + area, PAGE + 2 * area)
        self._mine, self._theirs = (first, second) if client else (second, first)
        self._most = area if most is None else most
        self._states = self._view.cast("Q")
        self._busy: list[tuple[int, int]] = []
        """Places in this end's area that the other end may not yet have read, by position."""
        # Held during copies, so that the memory is not unmapped meanwhile. Copying holds the interpreter lock anyway.
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Unmap the memory when the stream has ended. Nothing is written after that. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._states.release()
                self._view.release()
                self._memory.close()

    def put(self, parts: Buffers) -> pb.SharedData | None:
        """Write bytes for the other end and return where; None if they are few, there is no room, or this is closed."""
        size = sum(map(len, parts))
        if size < LEAST_BYTES:
            return None
        with self._lock:
            position = None if self._closed else self._reserve(HEADER + size)
            if position is None:
                return None
            end = position + HEADER
            for part in parts:
                start, end = end, end + len(part)
                self._view[start:end] = memoryview(part).cast("B")
        return pb.SharedData(position=position, bytes=size)

    def take(self, place: pb.SharedData) -> memoryview:
        """Return a copy of what the other end wrote, and give the place back to it.

        Raises ProtocolViolation for an impossible position, and SharedMemoryClosed after `close`.
        """
        start = place.position + HEADER
        first, last = self._theirs
        if place.position < first or place.position % HEADER or place.bytes < 0 or start + place.bytes > last:
            raise ProtocolViolation(
                f"{place.bytes} bytes at {place.position} of shared memory; the other end's area is {first} to {last}"
            )
        if place.bytes > self._most:
            raise ProtocolViolation(f"{place.bytes} bytes in shared memory; at most {self._most} at a time")
        copy = memoryview(pa.allocate_buffer(place.bytes)).cast("B")
        with self._lock:
            if self._closed:
                raise SharedMemoryClosed
            copy[:] = self._view[start : start + place.bytes]
            self._states[place.position // 8] = FREE
        return copy

    def _reserve(self, size: int) -> int | None:
        """The first place with enough room, marked as busy: low ones are in the CPU caches. Needs the lock."""
        position, last = self._mine
        self._busy = [place for place in self._busy if self._states[place[0] // 8] == BUSY]
        index = 0
        for start, end in self._busy:
            if start - position >= size:
                break
            position = end
            index += 1
        end = position + -(-size // HEADER) * HEADER
        if end > last:
            return None
        self._busy.insert(index, (position, end))
        self._states[position // 8] = BUSY
        return position


class OfferedMemory:
    """New memory that a client offers, until the server has answered."""

    def __init__(self) -> None:
        """Raises OSError or AttributeError if the system has no such memory."""
        size = PAGE + 2 * AREA_BYTES
        self._descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._descriptor, size)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self._memory: mmap.mmap | None = mmap.mmap(self._descriptor, size)
        except BaseException:
            os.close(self._descriptor)
            raise
        token = secrets.token_bytes(TOKEN_BYTES)
        self._memory[:TOKEN_BYTES] = token
        self.offer = pb.SharedMemory(process=os.getpid(), descriptor=self._descriptor, bytes=size, token=token)
        """The offer in the message Open."""

    def accepted(self) -> SharedMemory:
        """Return the client's end when the server has opened the memory. Call it once, before `close`."""
        assert self._memory is not None
        memory, self._memory = self._memory, None
        return SharedMemory(memory, client=True)

    def close(self) -> None:
        """Prevent further opening, and unmap memory that was not accepted. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()


def offer_memory() -> OfferedMemory | None:
    """Create memory to offer to a server; None if the system is not Linux or has no descriptor left."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        return OfferedMemory()
    return None


def attach(offer: pb.SharedMemory, most: int) -> SharedMemory:
    """Open the server's end of offered memory, which takes `most` bytes at once. Raises SharedMemoryRefused.

    A client names a descriptor of a process, which is not trusted: only memory of
    this kind is opened, and it is used only if it contains the token.
    """
    path = f"/proc/{offer.process}/fd/{offer.descriptor}"
    try:
        if str(Path(path).readlink()) != _LINK:
            raise SharedMemoryRefused(f"{path} is no memory of a client")
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if 2 * descriptor > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
                # Mapped memory holds a descriptor, and connections need descriptors more.
                raise SharedMemoryRefused("half of this process's descriptors are in use")
            return SharedMemory(_checked(descriptor, offer), client=False, most=most)
        finally:
            os.close(descriptor)
    except (OSError, AttributeError, ValueError, OverflowError) as error:
        raise SharedMemoryRefused(f"{path}: {error}") from error


def _checked(descriptor: int, offer: pb.SharedMemory) -> mmap.mmap:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size != offer.bytes:
        raise SharedMemoryRefused(f"memory of {found.st_size} bytes, announced with {offer.bytes}")
    if not PAGE < offer.bytes <= MOST_BYTES or (offer.bytes - PAGE) % (2 * HEADER):
        raise SharedMemoryRefused(f"memory of {offer.bytes} bytes; at most {MOST_BYTES} in areas of whole places")
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        # Reading pages that are gone would end this process.
        raise SharedMemoryRefused("memory that its owner can shrink")
    memory = mmap.mmap(descriptor, offer.bytes)
    if len(offer.token) != TOKEN_BYTES or not hmac.compare_digest(memory[:TOKEN_BYTES], offer.token):
        memory.close()
        raise SharedMemoryRefused("memory without the token")
    return memory
