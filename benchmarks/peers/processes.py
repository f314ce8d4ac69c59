"""Servers of peers as processes in their own virtual environment, and a client for both: Arrow Flight."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pyarrow as pa
from pyarrow import flight

__all__ = ["IN_FLIGHT", "PEERS", "Peer", "peer_process"]

PEERS = {"arrow_udf": "arrow-udf", "databend_udf": "databend-udf"}
"""Their names in the results, and as packages."""
VERSIONS = ["arrow-udf==0.3.2", "databend-udf==0.2.20"]
IN_FLIGHT = 4
"""Batches on their way at a time: what the prototype measured as enough for all."""
SERVER = Path(__file__).with_name("flight_server.py")


class Peer:
    """One server that is ready."""

    def __init__(self, port: int, process: psutil.Process) -> None:
        self._client = flight.connect(f"grpc://127.0.0.1:{port}")
        self.process = process

    def seconds(self, function: str, batches: Sequence[pa.RecordBatch]) -> float:
        """Time from the first batch to the last answer."""
        began = time.perf_counter()
        writer, reader = self._client.do_exchange(flight.FlightDescriptor.for_path(function))
        room = threading.Semaphore(IN_FLIGHT)
        failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

        def send() -> None:
            try:
                for batch in batches:
                    room.acquire()
                    writer.write_batch(batch)
                writer.done_writing()
            except BaseException as error:
                failures.put(error)

        rows = 0
        with writer:
            writer.begin(batches[0].schema)
            sender = threading.Thread(target=send, daemon=True)
            sender.start()
            for chunk in reader:
                rows += chunk.data.num_rows
                room.release()
            sender.join()
        if not failures.empty():
            raise failures.get()
        elapsed = time.perf_counter() - began
        assert rows == sum(batch.num_rows for batch in batches), f"{function}: {rows} rows came back"
        return elapsed


@contextlib.contextmanager
def peer_process(package: str, directory: Path) -> Iterator[Peer]:
    """Pins the server of a peer to the last core and this process to the others, as `server_process` does for ours."""
    python = _environment(directory)
    cores = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, cores[-1:])
        child = subprocess.Popen(
            [python, SERVER, package], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        os.sched_setaffinity(0, cores[:-1] if len(cores) > 1 else cores)
        with child:
            assert child.stdin is not None and child.stdout is not None
            port = json.loads(child.stdout.readline())["port"]
            yield Peer(port, psutil.Process(child.pid))
            child.stdin.close()
    finally:
        os.sched_setaffinity(0, cores)


def _environment(directory: Path) -> Path:
    """The Python of the peers' environment, created at the first run because their requirements differ from ours."""
    python = directory / "bin" / "python"
    done = directory / "installed"
    if not done.exists() or done.read_text().split() != VERSIONS:
        print("  installing " + " and ".join(VERSIONS), flush=True)
        venv.create(directory, with_pip=False, clear=True)
        # Python compiles the few modules that it imports, pip would compile all.
        pip = [sys.executable, "-m", "pip", "--python", str(python), "-q", "install", "--no-compile"]
        subprocess.run([*pip, *VERSIONS], check=True, stdout=sys.stderr)
        done.write_text("\n".join(VERSIONS))
    return python
