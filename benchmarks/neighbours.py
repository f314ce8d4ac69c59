"""What functions cost those of other groups and of their own group: floods, crashes and reloads beside small calls."""

import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

import pyarrow as pa

from benchmarks.direct import Client
from benchmarks.group_calls import NOTHING
from benchmarks.reloads import reload
from benchmarks.results import Results
from benchmarks.server import ServerProcess, server_process
from remote_udf.errors import RemoteUdfError

__all__ = ["measure_group_neighbours"]

FUNCTIONS = {
    "ping": """
@udf.scalar(deterministic=False)
async def ping(x: int) -> int:
    return x
""",
    "compute": """
@udf.scalar(deterministic=False)
def compute(x: int) -> int:
    return sum(number * number for number in range(20_000))
""",
    "crash": """
@udf.scalar(deterministic=False, timeout="2 s", max_attempts=1)
async def crash(x: int) -> int:
    os._exit(3)
""",
}
STREAMS = 16
"""Of the flood, which is a process of its own."""
GUARD = "[guards.{}]\nrate = '100000/second'\n"
CALM, FLOOD, BOTH = {"calm": ["ping"]}, {"flood": ["compute"]}, {"both": ["ping", "compute"]}


def measure_group_neighbours(results: Results, quick: bool) -> None:
    """Adds the rate of small calls, one after the other, beside floods, crashes and reloads, over that without them."""
    seconds, repetitions = (1.0, 1) if quick else (3.0, 7)
    guards = [GUARD.format(name) for name in ("ping", "compute")]
    with _served({**CALM, **FLOOD}, "".join(guards)) as groups, _served(FLOOD, guards[1]) as apart:
        beside = {"group": partial(_flooded, groups, groups), "separate": partial(_flooded, groups, apart)}
        note = "ping beside a flood in two processes of another group, both guarded, over a flood of another server"
        _compare(results, "neighbour_other_group", note, beside, seconds, repetitions)
    with _served(BOTH) as group, _served(BOTH) as apart:
        beside = {"group": partial(_flooded, group, group), "separate": partial(_flooded, group, apart)}
        note = "ping beside a flood of another function of its group, over a flood of another server"
        _compare(results, "neighbour_same_group", note, beside, seconds, repetitions)
    with _served({**CALM, "crashing": ["crash"]}) as server:
        long = 2.0 if quick else 60.0
        alone = _pings(server, long)
        with _calling(server, "crash", 4):
            crashing = _pings(server, long)
        note = f"ping in the {long:g} s after a group began to crash at every call, over alone"
        results.add("crashing_neighbour", len(crashing) / len(alone), f"{note}; {_load()}")
        results.add("crashing_neighbour_p99", _p99(crashing) / _p99(alone), f"its p99; {_load()}")
    with _served(CALM) as server:
        before, after = list[float](), list[float]()
        for _ in range(1 if quick else 10):
            before += _pings(server, 3.0)
            reload(server.metrics)
            after += _pings(server, 3.0)
        results.add("reload_p99_ratio", _p99(after) / _p99(before), f"p99 of ping in 3 s after and before; {_load()}")


Calls = Callable[[float], list[float]]
"""Measures for some seconds and returns the time of each call."""


def _compare(
    results: Results, name: str, note: str, beside: Mapping[str, Calls], seconds: float, repetitions: int
) -> None:
    found: dict[str, list[list[float]]] = {side: [] for side in beside}
    for measure in beside.values():
        measure(1.0)  # the first calls start what serves them
    for _ in range(repetitions):
        for side, measure in beside.items():
            found[side].append(measure(seconds))
    rate = {side: statistics.median(len(each) for each in calls) for side, calls in found.items()}
    late = {side: statistics.median(map(_p99, calls)) for side, calls in found.items()}
    results.add(name, rate["group"] / rate["separate"], f"rate of {note}; {_load()}")
    results.add(f"{name}_p99", late["group"] / late["separate"], f"its p99 over that; {_load()}")
    results.add(f"{name}_per_second", rate["group"] / seconds, "calls per second beside the flood")


@contextmanager
def _served(groups: Mapping[str, Sequence[str]], guards: str = "") -> Iterator[ServerProcess]:
    """A server with these groups, which have these functions; the group `flood` has two processes."""
    with tempfile.TemporaryDirectory() as name:
        folder, tables = Path(name), guards
        for group, functions in groups.items():
            plugin = folder / f"{group}.py"
            plugin.write_text(
                "import os\n\nimport udf_server as udf\n" + "".join(FUNCTIONS[each] for each in functions)
            )
            processes = 2 if group == "flood" else 1
            tables += f"[groups.{group}]\nplugins = [{json.dumps(str(plugin))}]\nprocesses = {processes}\n"
        (folder / "server.toml").write_text(tables)
        (folder / "nothing.py").write_text(NOTHING)
        with server_process(folder / "nothing.py", settings=["--config", str(folder / "server.toml")]) as server:
            yield server


def _flooded(server: ServerProcess, flooded: ServerProcess, seconds: float) -> list[float]:
    with _calling(flooded, "compute", STREAMS):
        return _pings(server, seconds)


def _pings(server: ServerProcess, seconds: float) -> list[float]:
    """The time of each call, one after the other."""
    client, found, ends = Client(server.target), list[float](), time.monotonic() + seconds
    while time.monotonic() < ends:
        found += client.each_row("ping", 20)
    return found


@contextmanager
def _calling(server: ServerProcess, function: str, streams: int) -> Iterator[None]:
    """Calls a function all the time, from another process."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=_call, args=(server.target, function, streams, begun), daemon=True)
    process.start()
    try:
        begun.wait(60)
        time.sleep(1.0)
        yield
    finally:
        process.kill()
        process.join()


def _call(target: str, function: str, streams: int, begun: Event) -> None:
    rows, clients = [pa.record_batch([pa.array(range(200))], ["x"])], [Client(target) for _ in range(streams)]

    def again(client: Client) -> None:
        while True:
            with contextlib.suppress(RemoteUdfError):  # of rows that end their process
                client.seconds(function, rows)

    threads = [threading.Thread(target=again, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    begun.set()
    for thread in threads:
        thread.join()


def _p99(calls: Sequence[float]) -> float:
    return statistics.quantiles(calls, n=100)[-1]


def _load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"
