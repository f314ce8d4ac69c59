"""A real Prometheus scrapes a real server during a real job: every query of rules and dashboard has an answer."""

import json
import math
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.drawing import draw
from tests.deploy.images import ROOT
from tests.deploy.queries import RULES, measured, panel_queries, rules
from tests.ports import free_port
from udf_server.security.access import hashed, new_token

PICTURE = os.environ.get("UDF_DASHBOARD_PICTURE")
"""Where to draw the dashboard to, with what this job made."""
PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="needs Debian's prometheus")

FUNCTIONS = """
import asyncio, time
from dataclasses import dataclass
from typing import Annotated
import udf_server as udf

@udf.scalar(max_attempts=2, fixed_delay="1 ms", retry_strategy="fixed_delay")
async def price(x: int, context: udf.CallContext) -> float:
    await asyncio.sleep(0.001)
    context.spend(usd=0.01)
    if x % 50 == 0:
        raise udf.RetryableError("sold out")
    return x / 100

@udf.scalar
async def guarded(x: int) -> int:
    raise OSError("away")

@udf.scalar(batched=True, max_queue_delay="1 ms", idempotent=True, hedge_after="1 ms", hedge_share=1)
async def merged(x: list[int]) -> list[int]:
    await asyncio.sleep(0.01)
    return x

@udf.scalar
async def blocks(x: int) -> int:
    time.sleep(0.8)
    return x

@udf.scalar(timeout="200 ms")
def hangs(x: int) -> int:
    time.sleep(60)

class Mean(udf.AggregateFunction):
    def create_accumulator(self) -> list[float]:
        return [0.0, 0.0]
    def accumulate(self, accumulator, x: int):
        accumulator[0] += x
        accumulator[1] += 1
    def merge(self, accumulator, others):
        for other in others:
            accumulator[0] += other[0]
            accumulator[1] += other[1]
    def get_value(self, accumulator) -> float:
        return accumulator[0] / accumulator[1]

@dataclass
class Count:
    n: int = 0

class Last(udf.ProcessTableFunction):
    returns = "n bigint"
    def eval(self, ctx, count: Annotated[Count, udf.StateHint()],
             rows: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE]):
        count.n += 1
        ctx.register_on_time("end", 2**63 - 1)
        yield (count.n,)
    def on_timer(self, ctx, count):
        yield (-count.n,)
"""
GUARDS = '[guards.guarded]\nbreaker-failures = 3\nbreaker-delay = "10 min"\nmax-concurrency = 9\nrate = "1000/second"\n'
CALLERS = "[callers.job]\nshare = 3\n[callers.other]\nbudget = {usd = 5}\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What two worker processes print when they are ready."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    token, rules = new_token(), tmp_path / "access.toml"
    (tmp_path / "token").write_text(token)
    rules.write_text(f'[job]\ntoken_sha256 = "{hashed(token)}"\n[other]\ntoken_sha256 = "{hashed(new_token())}"\n')
    (tmp_path / "server.toml").write_text(f'access_file = "{rules}"\n{GUARDS}{CALLERS}')
    command = [
        sys.executable, "-m", "udf_server", "serve", "--config", "server.toml", "--plugin", "functions.py",
        "--no-entry-points", "--port", "0", "--metrics-port", "0", "--processes", "2", "--stop-with-stdin",
        "--devices", "0,1", "--log-level", "error", "--drain-seconds", "1",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield {**json.loads(process.stdout.readline()), "token": str(tmp_path / "token")}
        process.stdin.close()
        process.wait(30)


class Prometheus:
    """A Prometheus that runs with the project's configuration, only faster."""

    def __init__(self, folder: Path, scraped: str) -> None:
        config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(path) for path in RULES]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [scraped]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        self._url = f"http://{address}/api/v1"
        assert PROMETHEUS is not None
        self.process = subprocess.Popen(
            [PROMETHEUS, "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"],
            cwd=folder, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, path: str, **arguments: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(arguments)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def numbers(self, query: str) -> list[float]:
        """The finite values of an instant query."""
        values = [float(sample["value"][1]) for sample in self.ask("query", query=query)["result"]]
        return [value for value in values if math.isfinite(value)]

    def series(self, query: str) -> list[Any]:
        """Its series over the last minute."""
        now = time.time()
        return self.ask("query_range", query=query, start=f"{now - 60}", end=f"{now}", step="1s")["result"]


@pytest.fixture
def prometheus(server: dict[str, Any], tmp_path: Path) -> Iterator[Prometheus]:
    started = Prometheus(tmp_path, server["metrics"].removeprefix("http://"))
    with started.process:
        try:
            until(lambda: started.numbers("up") == [1])
            yield started
        finally:
            started.process.terminate()


RARE = (
    "udf_crowded_seconds_total", "udf_rate_waits_total", "udf_relayed_streams_total", "udf_result_bytes",
    "udf_result_waits_total", "udf_turns_waiting",
)  # fmt: skip
"""Series of the dashboard that begin when calls or results first wait, which depends on the speed of the machine; or
that only servers with groups have."""


def until(condition: Any) -> None:
    """Returns once it holds; a server that does not listen yet is asked again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.2)


def run_jobs(spark: Any, server: dict[str, Any]) -> None:
    """Rows that go well, fail, are retried, block, hang, are cached, merged; an aggregate; a process table function."""
    from spark_client import Security, connect

    remote = connect(spark, server["target"], security=Security(token_file=server["token"]))
    numbers = spark.range(0, 400, 1, 2).selectExpr("id", "id % 5 AS k")
    rows = remote.with_columns(numbers, {"price": remote.function("price")("id")}, on_error="null")
    assert rows.where("price IS NULL").count() == 8
    for name, count in (("guarded", 6), ("blocks", 1), ("hangs", 1)):
        call = remote.function(name, timeout="1 s")("id") if name == "guarded" else remote.function(name)("id")
        remote.with_columns(spark.range(0, count, 1, 1), {"y": call}, on_error="null").collect()
    assert remote.with_columns(numbers, {"y": remote.function("merged")("id")}).where("y = id").count() == 400
    cached = remote.function("price", cache_ttl="1 min")("id")
    assert remote.with_columns(numbers, {"price": cached}, on_error="null").where("price IS NULL").count() == 8
    means = remote.group_by(numbers, "k").agg(remote.function("mean")("id").alias("mean"))
    assert sorted(row.mean for row in means.collect()) == [197.5, 198.5, 199.5, 200.5, 201.5]
    assert remote.process("last", numbers, partition_by="k").count() == 405


@pytest.mark.long
def test_every_query_of_rules_and_dashboard_returns_numbers(spark, server: dict[str, Any], prometheus: Prometheus):
    queries = {*panel_queries()}
    queries |= {rule["record"] if "record" in rule else measured(rule["expr"]) for rule in rules()}
    unanswered = {query for query in queries if not any(name in query for name in RARE)}
    assert all(any(name in query for query in queries - unanswered) for name in RARE)

    def answered() -> bool:
        nonlocal unanswered
        unanswered = {query for query in unanswered if not prometheus.numbers(query)}
        return not unanswered

    # A rate is of what comes after a series has appeared, and each process has series of its own: which of them gets a
    # job's calls is chance, so jobs run until one has got them twice.
    runs = 0
    while runs < 2 or (runs < 8 and not answered()):
        run_jobs(spark, server)
        runs += 1
    try:
        until(answered)
    except AssertionError:
        pytest.fail("no numbers for\n" + "\n".join(sorted(unanswered)))
    states = {rule["name"]: rule["health"] for group in prometheus.ask("rules")["groups"] for rule in group["rules"]}
    assert set(states.values()) == {"ok"}
    assert len(states) == len(rules())
    assert prometheus.numbers("udf_rows_of_nobody_total") == []
    # And they are the right ones: what the jobs did can be read off, once the last scrape has it.
    done = {
        'sum(udf_rows_total{function="price", outcome="failed"})': 16 * runs,
        'sum(udf_retries_total{function="price"})': 16 * runs,
        "sum(udf_emitted_rows_total)": 405 * runs,
        "max(udf_circuit_open)": 1,
    }
    until(lambda: {query: prometheus.numbers(query) for query in done} == {query: [n] for query, n in done.items()})
    if PICTURE:
        draw(prometheus.series, Path(PICTURE))
