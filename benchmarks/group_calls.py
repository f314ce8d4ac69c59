"""Calls of a group at its port, and passed on by the default group, over calls of a server without groups."""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.direct import Client
from benchmarks.results import Results
from benchmarks.server import FUNCTIONS, ServerProcess, server_process
from benchmarks.timing import alternating, medians
from spark_client.executor.stream.ports import process_ports

__all__ = ["NOTHING", "measure_group_calls"]

SPARK_BATCH = 10_000
FOREVER_SECONDS = 1e6
NOTHING = "import udf_server as udf\n\n\n@udf.scalar\nasync def nothing(x: int) -> int:\n    return x\n"
"""The plugin of a default group that nobody calls."""


def measure_group_calls(results: Results, quick: bool) -> None:
    """Both servers run at the same time, and measurements of them alternate. A ratio above 1 is a faster group.

    Streams are passed on for a client that knows the port of the group as one that cannot be reached.
    """
    repetitions = 1 if quick else 7
    vectorized, waiting = _batches(100_000 if quick else 5_000_000), _batches(5_000 if quick else 50_000)
    for name, settings in (("", []), ("_without_shared_memory", ["--no-shared-memory"])):
        with (
            tempfile.TemporaryDirectory() as folder,
            server_process(settings=settings) as plain,
            _with_group(Path(folder), settings) as grouped,
        ):
            passing = grouped.target.replace("127.0.0.1", "localhost")
            process_ports().failed(passing, time.monotonic() + FOREVER_SECONDS, "the benchmark compares it")
            clients = {"plain": Client(plain.target), "group": Client(grouped.target), "relayed": Client(passing)}
            kinds: dict[str, Callable[[Client], float]] = {
                "vectorized": lambda client: client.seconds("convert", vectorized),
                "async": lambda client: client.seconds("look_up", waiting, **{"buffer-capacity": "1000"}),
                "first_row": lambda client: client.seconds("async_identity", _batches(1)),
            }
            for kind, measure in kinds.items():
                found = alternating({each: partial(measure, client) for each, client in clients.items()}, repetitions)
                took = medians(found)
                note = f"speed of {kind} calls of a group over those of a server without groups"
                results.add(f"group_vs_plain_{kind}{name}", took["plain"] / took["group"], note)
                note = f"speed of {kind} calls that are passed on to a group over those at its port"
                results.add(f"relayed_vs_direct_{kind}{name}", took["group"] / took["relayed"], note)


def _with_group(folder: Path, settings: Sequence[str]) -> AbstractContextManager[ServerProcess]:
    """A server whose functions are in a group; the default group has one that nobody calls."""
    (folder / "nothing.py").write_text(NOTHING)
    (folder / "server.toml").write_text(f"[groups.measured]\nplugins = [{json.dumps(str(FUNCTIONS))}]\n")
    return server_process(folder / "nothing.py", settings=["--config", str(folder / "server.toml"), *settings])


def _batches(rows: int) -> list[pa.RecordBatch]:
    column = pa.array(range(rows), pa.int64())
    return pa.Table.from_arrays([column], ["x"]).to_batches(SPARK_BATCH)
