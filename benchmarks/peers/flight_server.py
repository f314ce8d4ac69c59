"""A server of a peer: `python flight_server.py arrow-udf`, or `databend-udf`, in its own environment.

It prints its port, and serves until its input ends. Functions are those of `functions`, by name and setting:
`look_up_1000` has 1000 threads; other functions have the number that suits them.
"""

import importlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

LONG, TEXT = pa.int64(), pa.string()
POINT = pa.struct([("x", pa.float64()), ("y", pa.float64())])
THREADS = (100, 1000, 4000)
"""Of lookups. The setting decides how many are in flight."""

Add = Callable[..., None]


def functions(add: Add) -> None:
    """Passes every function to `add(name, code, inputs, result, threads, batch)`."""
    add("add_row", lambda a, b: a + b, [LONG, LONG], LONG, 1, False)
    add("add_batch", lambda a, b: [x + y for x, y in zip(a, b, strict=True)], [LONG, LONG], LONG, 1, True)
    add("gcd_row", math.gcd, [LONG, LONG], LONG, 1, False)
    add("gcd_batch", lambda a, b: list(map(math.gcd, a, b)), [LONG, LONG], LONG, 1, True)
    add("upper_row", lambda text: text.upper(), [TEXT], TEXT, 1, False)
    add("upper_batch", lambda text: [each.upper() for each in text], [TEXT], TEXT, 1, True)
    add("swap_row", _swapped, [POINT], POINT, 1, False)
    add("swap_batch", lambda points: [_swapped(point) for point in points], [POINT], POINT, 1, True)
    for threads in THREADS:
        add(f"look_up_{threads}", _look_up, [LONG], LONG, threads, False)
    add("look_up_default", _look_up, [LONG], LONG, None, False)
    add("add_default", lambda a, b: a + b, [LONG, LONG], LONG, None, False)


def _swapped(point: Any) -> Any:
    if isinstance(point, tuple):  # the second peer represents a struct as a tuple
        return point[::-1]
    return {"x": point["y"], "y": point["x"]}


def _look_up(x: int) -> int:
    time.sleep(0.01)
    return x


def arrow_udf() -> Any:
    """The server of the first peer."""
    peer = importlib.import_module("arrow_udf")
    server = peer.UdfServer(location="127.0.0.1:0")

    def add(name: str, code: Any, inputs: Sequence[Any], result: Any, threads: int | None, batch: bool) -> None:
        named = {"name": name, "io_threads": threads, "batch": batch}
        server.add_function(peer.udf(input_types=inputs, result_type=result, **named)(_plain(code, len(inputs))))

    functions(add)
    return server


def databend_udf() -> Any:
    """The server of the second."""
    peer = importlib.import_module("databend_udf")
    server = peer.UDFServer(location="127.0.0.1:0")

    def add(name: str, code: Any, inputs: Sequence[Any], result: Any, threads: int | None, batch: bool) -> None:
        settings = {"name": name, "batch_mode": batch, **({} if threads is None else {"io_threads": threads})}
        server.add_function(peer.udf(input_types=inputs, result_type=result, **settings)(_plain(code, len(inputs))))

    functions(add)
    return server


def _plain(code: Any, count: int) -> Any:
    """A separate function for each name, with as many named parameters as both decorators require."""

    def one(a: Any) -> Any:
        return code(a)

    def two(a: Any, b: Any) -> Any:
        return code(a, b)

    return one if count == 1 else two


def main() -> None:
    """Serves until the other end of the input is closed."""
    printed, sys.stdout = sys.stdout, sys.stderr  # the peers print each function they add
    server = {"arrow-udf": arrow_udf, "databend-udf": databend_udf}[sys.argv[1]]()
    print(json.dumps({"port": server.port}), file=printed, flush=True)

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
    server.serve()


if __name__ == "__main__":
    main()
