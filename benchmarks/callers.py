"""Callers of one server who want more than there is: what shares give them, and what a flood costs a neighbour."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.direct import Client
from benchmarks.fleet_functions import WAIT_SECONDS
from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.timing import alternating
from spark_client.base.security import Security
from udf_server.security.access import hashed, new_token

__all__ = ["measure_callers"]

FUNCTIONS = Path(__file__).with_name("fleet_functions.py")
THREADS = 64
SHARE = 3
FLOOD = 8
"""Streams of the caller that floods."""
SETTINGS = f"""
threads_per_function = {THREADS}

[callers.etl]
share = {SHARE}
"""


def measure_callers(results: Results, quick: bool, folder: Path) -> None:
    """Adds what two callers with shares of 3 and 1 get, and the rows per second of a caller beside one that floods."""
    with _clients(folder) as clients:
        _measure_shares(results, quick, clients)
        _measure_neighbour(results, quick, clients)


def _measure_shares(results: Results, quick: bool, clients: dict[str, Client]) -> None:
    """The caller with the smaller share has more streams, which must make no difference.

    Shares divide the time of threads, and calls differ: 1,600 of the smaller caller last on average up to 2 % (two
    standard errors) more or less than the others, so time is compared and not the number of calls. It is compared while
    both callers have more rows here than threads can take, in a second run: in the first one threads start.
    """
    unit = 400 if quick else 1_000
    _calls(clients, unit // 4)
    found = _calls(clients, unit)
    began = max(min(began for began, _ in calls) for calls in found.values()) + 10 * WAIT_SECONDS
    ended = min(max(ended for _, ended in calls) for calls in found.values()) - 10 * WAIT_SECONDS
    both = {
        name: sum(max(min(last, ended) - max(first, began), 0.0) for first, last in calls)
        for name, calls in found.items()
    }
    error = abs(both["etl"] / both["adhoc"] / SHARE - 1)
    note = f"thread time of a caller with share {SHARE} over that of one with 1, to {SHARE}, less 1; {THREADS} threads"
    results.add("shares_3_to_1_error", error, note)


def _calls(clients: dict[str, Client], unit: int) -> dict[str, list[list[float]]]:
    """When the calls of both callers began and ended. They have rows in the same proportion as their shares."""
    streams = [("etl", SHARE * unit)] * 2 + [("adhoc", unit // 2)] * 4
    options = {"buffer-capacity": str(SHARE * unit)}  # a client that is late must not leave threads to the other caller
    found: dict[str, list[list[float]]] = {"etl": [], "adhoc": []}
    with ThreadPoolExecutor(len(streams)) as threads:
        calls = [
            (name, threads.submit(clients[name].values, "timed", _rows(rows), **options)) for name, rows in streams
        ]
        for name, call in calls:
            found[name] += call.result()
    return found


def _measure_neighbour(results: Results, quick: bool, clients: dict[str, Client]) -> None:
    """The neighbour wants a quarter of the threads."""
    rows, options = _rows(80 if quick else 800), {"buffer-capacity": str(THREADS // 4)}

    def beside_flood() -> float:
        with ThreadPoolExecutor(FLOOD) as threads:
            # The flood has three quarters of the threads, and lasts longer.
            flood = [
                threads.submit(clients["adhoc"].seconds, "timed", _rows(5 * len(rows[0]) // FLOOD))
                for _ in range(FLOOD)
            ]
            time.sleep(0.2)
            seconds = clients["quiet"].seconds("timed", rows, **options)
            for stream in flood:
                stream.result()
            return seconds

    sides: dict[str, Callable[[], float]] = {
        "alone": partial(clients["quiet"].seconds, "timed", rows, **options),
        "beside": beside_flood,
    }
    times = results.medians("neighbour_of_flood", alternating(sides, 1 if quick else 5))
    note = (
        f"rows/s of a caller with {THREADS // 4} calls at once beside {FLOOD} streams of another over those alone; "
        f"{WAIT_SECONDS * 1000:g} ms, {THREADS} threads"
    )
    results.add("neighbour_of_flood", times["alone"] / times["beside"], note)


def _rows(count: int) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array(range(count), pa.int64())], names=["x"])]


@contextlib.contextmanager
def _clients(folder: Path) -> Iterator[dict[str, Client]]:
    """Clients of one server by the name of the caller."""
    rules, securities = [], {}
    for name in ("etl", "adhoc", "quiet"):
        token, file = new_token(), folder / f"{name}.token"
        file.write_text(token)
        rules.append(f'[{name}]\ntoken_sha256 = "{hashed(token)}"\n')
        securities[name] = Security(token_file=str(file))
    (folder / "access.toml").write_text("".join(rules))
    settings = folder / "callers.toml"
    settings.write_text(f'access_file = "{folder / "access.toml"}"\n{SETTINGS}')
    with server_process(FUNCTIONS, settings=["--config", str(settings)]) as server:
        yield {name: Client(server.target, security=security) for name, security in securities.items()}
