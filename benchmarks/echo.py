"""A raw Arrow echo over a Unix socket: the cost of moving bytes between two processes, and of nothing else.

`python -m benchmarks.echo PATH` is the other process: it reads each batch and writes it back.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from benchmarks.peers.processes import IN_FLIGHT

__all__ = ["Echo", "echo_process"]


class Echo:
    """The sending end."""

    def __init__(self, path: str) -> None:
        self._path = path

    def seconds(self, batches: Sequence[pa.RecordBatch]) -> float:
        """Time from the first batch to the last one that came back, including the connection."""
        began = time.perf_counter()
        room = threading.Semaphore(IN_FLIGHT)
        rows = 0
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._path)
            sender = threading.Thread(target=_send, args=(connection, batches, room), daemon=True)
            sender.start()
            with connection.makefile("rb") as readable, pa.ipc.open_stream(readable) as reader:
                for batch in reader:
                    rows += batch.num_rows
                    room.release()
            sender.join()
        elapsed = time.perf_counter() - began
        assert rows == sum(batch.num_rows for batch in batches)
        return elapsed


def _send(connection: socket.socket, batches: Sequence[pa.RecordBatch], room: threading.Semaphore) -> None:
    with connection.makefile("wb") as writable, pa.ipc.new_stream(writable, batches[0].schema) as writer:
        for batch in batches:
            room.acquire()
            writer.write_batch(batch)
            writable.flush()
    connection.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def echo_process() -> Iterator[Echo]:
    """Runs the other process until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "echo.sock")
        child = subprocess.Popen([sys.executable, "-m", "benchmarks.echo", path], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            try:
                yield Echo(path)
            finally:
                child.terminate()


def _serve(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        os.write(sys.stdout.fileno(), b"ready\n")
        while True:
            connection, _ = listener.accept()
            with (
                connection,
                connection.makefile("rb") as readable,
                connection.makefile("wb") as writable,
                pa.ipc.open_stream(readable) as reader,
                pa.ipc.new_stream(writable, reader.schema) as writer,
            ):
                for batch in reader:
                    writer.write_batch(batch)
                    writable.flush()


if __name__ == "__main__":
    _serve(sys.argv[1])
