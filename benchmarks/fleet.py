"""The suite of the fleet: limits, budgets and shares, their cost, balance, and four servers against one."""

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.cache import redis_server
from benchmarks.callers import measure_callers
from benchmarks.direct import Client
from benchmarks.fleet_functions import LOOKUP_SECONDS, WAIT_SECONDS
from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.timing import alternating
from spark_client.base.budget import SessionBudget
from tests.simulation.fleet.many import run_scenario
from tests.simulation.fleet.scenarios import SCENARIOS, STEADY, Size

__all__ = ["run_fleet"]

FUNCTIONS = Path(__file__).with_name("fleet_functions.py")
SERVERS, STREAMS = 4, 64
RATE, PLACES = 1_000, 100
TASKS = 16
THREADS = ("--threads-per-function", "16")
IN_FLIGHT = 1_000
GUARDS = f"""
[guards.limited]
rate = "{RATE}/second"

[guards.counted]
max-concurrency = {PLACES}
"""
# Every limit is checked, and none of them is reached.
COST_GUARD = """
[guards.lookup]
max-concurrency = 5000
rate = "1000000/second"
breaker-failures = 1000
"""


def run_fleet(results: Results, quick: bool) -> None:
    """Measures without Spark: the client of its Python workers sends the rows."""
    with redis_server() as url, tempfile.TemporaryDirectory() as folder:
        _measure_limits(results, quick, url, Path(folder))
        _measure_budgets(results, quick, url, Path(folder))
        _measure_cost(results, quick, url, Path(folder))
        measure_callers(results, quick, Path(folder))
        _measure_servers(results, quick, Path(folder))
    _measure_balance(results, quick)


def _measure_balance(results: Results, quick: bool) -> None:
    """In virtual time, with the client's own code, since no machine here has fifty servers."""
    size = Size(100, 5) if quick else Size(1_000, 50)
    # A process of its own: the simulation replaces clocks.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(run_scenario, SCENARIOS.index(STEADY), size, 1).result()
    who = f"{size.clients:,} simulated clients, {size.servers} servers"
    note = f"load of the busiest server over the mean load; {who}"
    results.add("max_over_mean_load", found.phases[-1].max_over_mean_load, note)
    results.add("max_over_mean_load_first_minute", found.phases[0].max_over_mean_load, f"{note}, all new")
    opened = sum(phase.opened for phase in found.phases)
    results.add("streams_opened_per_client", opened / size.clients, f"in four minutes; {who}")


def _measure_limits(results: Results, quick: bool, url: str, folder: Path) -> None:
    with _servers(SERVERS, GUARDS, url, folder, "times") as targets:
        per_stream = RATE * (2 if quick else 6) // STREAMS
        _stream(targets, "limited", per_stream)
        times = sorted(float(line) for line in _lines(folder, "times"))
        most = _most_in_a_window(times, 1.0)
        note = f"calls of the worst second over the rate, less 1; {SERVERS} servers, {STREAMS} streams, {RATE:,}/second"
        results.add("rate_overshoot", max(most / RATE - 1, 0.0), note)
        elapsed = times[-1] - times[0]
        results.add("rate_used", (len(times) / RATE) / (elapsed + 1), "calls over those that the rate allows meanwhile")
    with _servers(SERVERS, GUARDS, url, folder, "counts") as targets:
        _stream(targets, "counted", (1_000 if quick else 40_000) // STREAMS)
        calls = [(float(began), float(ended)) for began, ended in map(str.split, _lines(folder, "counts"))]
        changes = sorted([(began, 1) for began, _ in calls] + [(ended, -1) for _, ended in calls])
        now = most = 0
        for _, change in changes:
            now += change
            most = max(most, now)
        note = f"most calls at once over max-concurrency, less 1; {SERVERS} servers, {STREAMS} streams, {PLACES}"
        results.add("concurrency_overshoot", max(most / PLACES - 1, 0.0), note)
        used = sum(ended - began for began, ended in calls) / PLACES / (changes[-1][0] - changes[0][0])
        results.add("concurrency_used", used, "time of calls over the time that max-concurrency allows meanwhile")


def _measure_budgets(results: Results, quick: bool, url: str, folder: Path) -> None:
    """Send twice the rows that a budget has: of calls, whose cost is known, and of money, whose cost is reported."""
    worst: dict[str, float] = {}
    least = 1.0
    calls = 2_000 if quick else 20_000
    for name, amount in (("calls", float(calls)), ("usd", calls / 1_000)):
        for number in range(1 if quick else 3):
            place = f"{name}{number}"
            with _servers(SERVERS, "", url, folder, place, coordinated=True) as targets:
                _stream(targets, "priced", 2 * calls // STREAMS, SessionBudget.of({name: amount}, "on-error"))
            amounts = [float(line) for line in _lines(folder, place)]
            spent = sum(amounts) if name == "usd" else len(amounts)
            worst[name] = max(worst.get(name, 0.0), spent / amount - 1)
            least = min(least, spent / amount)
    note = f"what was spent over the budget, less 1; worst of calls and usd; {SERVERS} servers, {STREAMS} streams"
    results.add("budget_overshoot", max(*worst.values(), 0.0), note)
    results.add("budget_used", least, "what was spent of the budget; the least of all runs")


def _measure_cost(results: Results, quick: bool, url: str, folder: Path) -> None:
    rows, options = _cut(range((20 if quick else 200) * IN_FLIGHT)), {"buffer-capacity": str(IN_FLIGHT)}
    servers = partial(_servers, 1, folder=folder)
    with (
        servers(guards="", url="") as without, servers(guards=COST_GUARD, url=url) as shared,
        servers(guards=COST_GUARD, url="") as local,
    ):  # fmt: skip
        sides = {
            name: partial(Client(targets[0]).seconds, "lookup", rows, **options)
            for name, targets in (("without", without), ("shared", shared), ("local", local))
        }
        times = results.medians("guard_cost", alternating(sides, 1 if quick else 7))
        note = f"{LOOKUP_SECONDS * 1000:g} ms, {IN_FLIGHT:,} in flight"
        results.add(
            "guard_cost", times["without"] / times["shared"], f"rows/s with a shared guard over without; {note}"
        )
        note = f"rows/s with a guard of one process over without; {note}"
        results.add("guard_cost_local", times["without"] / times["local"], note)


def _measure_servers(results: Results, quick: bool, folder: Path) -> None:
    """Run a function that waits, in the threads of one server and of four."""
    per_stream = (64 if quick else 1_600) // TASKS * 4
    servers = partial(_servers, guards="", url="", folder=folder, settings=THREADS)
    with servers(1) as one, servers(SERVERS) as four:

        def seconds(targets: Sequence[str]) -> float:
            # The client chooses the servers, as it does in a job.
            client = Client(",".join(targets))
            start = time.perf_counter()
            with ThreadPoolExecutor(TASKS) as threads:
                list(threads.map(lambda _: client.seconds("waiting", _cut(range(per_stream))), range(TASKS)))
            return time.perf_counter() - start

        sides = {"one": partial(seconds, one), "four": partial(seconds, four)}
        times = results.medians("four_servers", alternating(sides, 1 if quick else 5))
    note = (
        f"rows/s of four servers over one; a def that waits {WAIT_SECONDS * 1000:g} ms, 16 threads each, {TASKS} tasks"
    )
    results.add("four_servers_vs_one", times["one"] / times["four"], note)


def _stream(targets: Sequence[str], function: str, rows: int, budget: SessionBudget | None = None) -> None:
    """Send rows over 64 streams at once, in turn to each server."""
    clients = [Client(target, budget) for target in targets]
    chosen = [clients[number % len(clients)] for number in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as threads:
        list(threads.map(lambda client: client.seconds(function, _cut(range(rows))), chosen))


def _most_in_a_window(times: Sequence[float], seconds: float) -> int:
    first = most = 0
    for last, moment in enumerate(times):
        while times[first] <= moment - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def _lines(folder: Path, name: str) -> list[str]:
    return [line for path in folder.glob(f"{name}.*") for line in path.read_text().splitlines()]


def _cut(numbers: range) -> list[pa.RecordBatch]:
    column = pa.array(numbers, pa.int64())
    return [pa.record_batch([column.slice(start, 10_000)], names=["x"]) for start in range(0, len(column), 10_000)]


@contextlib.contextmanager
def _servers(
    count: int,
    guards: str,
    url: str,
    folder: Path,
    times: str = "",
    *,
    coordinated: bool = False,
    settings: Sequence[str] = (),
) -> Iterator[list[str]]:
    """Servers that share guards and budgets by the Redis. They write about calls to files with this name."""
    path = folder / "server.toml"
    path.write_text(guards)
    joins = url and (guards or coordinated)
    given = ["--config", str(path), *settings, *(["--coordination-url", url] if joins else [])]
    with contextlib.ExitStack() as stack:
        if times:
            os.environ["FLEET_TIMES"] = str(folder / times)
            stack.callback(os.environ.pop, "FLEET_TIMES", None)
        yield [stack.enter_context(server_process(FUNCTIONS, settings=given)).target for _ in range(count)]
