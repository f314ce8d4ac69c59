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
    """The caller with the smaller share has more streams, which must make no difference."""
    unit = 100 if quick else 1_000
    streams = [("etl", SHARE * unit)] * 2 + [("adhoc", unit // 2)] * 4
    with ThreadPoolExecutor(len(streams)) as threads:
        calls = [(name, threads.submit(clients[name].values, "numbered", _rows(rows))) for name, rows in streams]
        found: dict[str, list[int]] = {"etl": [], "adhoc": []}
        for name, call in calls:
            found[name] += call.result()
    # At the beginning and at the end only one of them has calls.
    first, last = 10 * THREADS, min(max(numbers) for numbers in found.values()) - 5 * THREADS
    both = {name: sum(first <= number < last for number in numbers) for name, numbers in found.items()}
    ratio = both["etl"] / both["adhoc"]
    note = f"calls of a caller with share {SHARE} over those of one with 1, to {SHARE}, less 1; {THREADS} threads"
    results.add("shares_3_to_1_error", abs(ratio / SHARE - 1), note)


def _measure_neighbour(results: Results, quick: bool, clients: dict[str, Client]) -> None:
    """The neighbour wants a quarter of the threads."""
    rows, options = _rows(80 if quick else 800), {"buffer-capacity": str(THREADS // 4)}

    def beside_flood() -> float:
        with ThreadPoolExecutor(FLOOD) as threads:
            # The flood has three quarters of the threads, and lasts longer.
            flood = [
                threads.submit(clients["adhoc"].seconds, "numbered", _rows(5 * len(rows[0]) // FLOOD))
                for _ in range(FLOOD)
            ]
            time.sleep(0.2)
            seconds = clients["quiet"].seconds("numbered", rows, **options)
            for stream in flood:
                stream.result()
            return seconds

    sides: dict[str, Callable[[], float]] = {
        "alone": partial(clients["quiet"].seconds, "numbered", rows, **options),
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
