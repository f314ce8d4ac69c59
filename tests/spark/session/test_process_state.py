"""Nothing of the process changes while queries are planned and run: other threads print, warn and use it meanwhile."""

import gc
import locale
import logging
import os
import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from inspect import isfunction
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import RemoteSession, Window, connect, windows
from tests.spark.process.test_tables import Doubled
from tests.spark_client.executor.aggregate.world import Total
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.hosting import load
from udf_server.process.declaration import declare_process


@udf.scalar(cost=lambda v: {"usd": 1.0})
async def same(v: int) -> int:
    return v


@dataclass
class Sure:
    value: int
    confidence: float


@udf.scalar
async def sure(v: int) -> Sure:
    return Sure(v, 1.0)


@udf.scalar
async def fails(v: int) -> int:
    raise ValueError(v)


@udf.scalar(rows=True, returns="w bigint")
async def twice(v: int) -> list[dict[str, int]]:
    return [{"w": v}] * 2


def process_state():
    """What belongs to the process, and not to a query."""
    return {
        "output": (sys.stdout, sys.stderr, sys.stdin),
        "environment": dict(os.environ),
        "warnings": (warnings.filters[:], warnings.showwarning),
        "locale": locale.setlocale(locale.LC_ALL),
        "signals": {each: signal.getsignal(each) for each in signal.valid_signals()},
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook),
        "directory": Path.cwd(),
        "log": (logging.root.level, logging.root.handlers[:]),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "switches": sys.getswitchinterval(),
        "recursion": sys.getrecursionlimit(),
    }


@pytest.fixture
def remote(spark, serve, monkeypatch):
    # The server runs in this process, which is its own otherwise: there it may set for how long threads keep the lock.
    monkeypatch.setattr(load, "SHARED_SECONDS", load.ALONE_SECONDS)
    return connect(spark, serve(same, sure, fails, twice, declare_aggregate(Total), declare_process(Doubled)).target)


def calls(spark, remote, folder):
    """Calls of every public method that plans, by its name."""
    pq.write_table(pa.table({"k": [1, 2], "v": [3, 4]}), folder / "in.parquet")
    table = spark.range(60).selectExpr("id % 3 AS k", "id AS v", "timestamp_seconds(id) AS at")
    table.createOrReplaceTempView("t")
    f, total = remote.function("same"), remote.function("total")
    failing = remote.with_columns(
        table, {"x": remote.function("fails")("v")}, on_error="dead-letter", dead_letter=str(folder / "letters")
    )
    failing.collect()
    windowed = {
        name: lambda name=name: getattr(windows, name)(table, "at", "2 seconds") for name in ("tumble", "session")
    }
    timed, partition = windowed["tumble"](), Window.partitionBy("k")
    return windowed | {
        "hop": lambda: windows.hop(table, "at", "1 second", "2 seconds"),
        "cumulate": lambda: windows.cumulate(table, "at", "1 second", "2 seconds"),
        "tumble_rows": lambda: windows.tumble_rows(table, 2, order_by="at", partition_by="k"),
        "window_join": lambda: windows.window_join(timed, timed, on=["k", "v", "at"]),
        "window_top_n": lambda: windows.window_top_n(timed, 1, order_by="v"),
        "window_deduplicate": lambda: windows.window_deduplicate(timed, "at", partition_by="k"),
        "with_watermark": lambda: windows.with_watermark(table, "at", "1 second"),
        "functions": remote.functions,
        "group_by": lambda: remote.group_by(table, "k").agg(total("v"), F.sum("v")).collect(),
        "rollup": lambda: remote.rollup(table, "k").agg(total("v")),
        "cube": lambda: remote.cube(table, "k").agg(total("v")),
        "grouping_sets": lambda: remote.grouping_sets(table, [["k"], []], "k").agg(total("v")),
        "register": lambda: remote.register("same", prefix="p_"),
        "sql": lambda: remote.sql("SELECT same(a.v) FROM t a JOIN t b ON a.k = b.k WHERE same(a.k) = 1").collect(),
        "explain": lambda: (
            remote.explain("SELECT k, total(v) FROM t GROUP BY k"), remote.explain(table.select(f("v")))
        ),
        "read_parquet": lambda: remote.read_parquet(str(folder / "in.parquet"), filter="k > 1"),
        "write_parquet": lambda: remote.write_parquet(table, str(folder / uuid4().hex)),
        "recover_parquet": lambda: remote.recover_parquet(str(folder / "letters")),
        "with_columns": lambda: remote.with_columns(table, {"x": f("v"), "y": total("v").over(partition)}),
        "select": lambda: remote.select(table, f("v")).collect(),
        "lateral_join": lambda: remote.lateral_join(table, remote.function("twice")("v")),
        "replay": lambda: remote.replay(str(folder / "letters")),
        "process": lambda: remote.process("doubled", table).collect(),
        "summary": lambda: _summarised(remote, table),
        "estimate": lambda: remote.estimate(table, f("v")),
        "cascade": lambda: remote.cascade(
            remote.function("sure"), f, target=0.5, sample=table.select("v"), confidence_level=0.5
        ),
        "function": lambda: remote.function("same"),
    }  # fmt: skip


def _summarised(remote, table):
    with remote.summary(progress=0.1):
        table.select(remote.function("same")("v")).collect()


@pytest.mark.long
def test_eight_threads_that_plan_and_run_queries_change_nothing_of_the_process(spark, remote, tmp_path, capsys):
    own = calls(spark, remote, tmp_path)
    public = {name for name, each in vars(RemoteSession).items() if isfunction(each) and not name.startswith("_")}
    # It would end the queries of the other threads.
    assert own.keys() == {*public, *windows.__all__} - {"cancel"}
    before, changed, names = process_state(), [], list(own)

    def run(number):
        for name in names[number::4]:
            own[name]()
            print(f"{number} {name}")
            now = process_state()
            changed.extend((name, part) for part in now if now[part] != before[part])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, [*range(4), *range(4)]))
    remote.cancel()
    assert (changed, process_state()) == ([], before)
    printed = capsys.readouterr().out.splitlines()
    assert sorted(printed) == sorted(
        f"{number} {name}" for number in [*range(4), *range(4)] for name in names[number::4]
    )
