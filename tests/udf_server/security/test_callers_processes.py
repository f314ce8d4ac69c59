"""Shares of callers over a real server process: rows of two callers that both want more than there is."""

import itertools
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from spark_client.base.config import ClientConfig
from spark_client.base.security import Security
from spark_client.executor.stream.transport import GrpcTransport
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from udf_server.security.access import hashed, new_token

pytestmark = pytest.mark.slow

PLUGIN = """
import asyncio
import itertools
import time
import udf_server as udf

NUMBERS = itertools.count()

@udf.scalar(timeout="120 s", buffer_capacity=20)
async def numbered(x: int) -> int:
    number = next(NUMBERS)
    await asyncio.sleep(0.003)
    return number

@udf.scalar(timeout="120 s")
def threaded(x: int) -> float:
    # The number, and behind the point the seconds.
    began, number = time.monotonic(), next(NUMBERS)
    time.sleep(0.003)
    return number + min(time.monotonic() - began, 0.999)
"""
SETTINGS = """
threads_per_function = 4

[guards.numbered]
max-concurrency = 6

[callers.etl]
share = 3
"""


@pytest.fixture
def server(plugin, tmp_path):
    tokens = {name: new_token() for name in ("etl", "adhoc")}
    rules = tmp_path / "access.toml"
    rules.write_text("".join(f'[{name}]\ntoken_sha256 = "{hashed(token)}"\n' for name, token in tokens.items()))
    settings = tmp_path / "server.toml"
    settings.write_text(f'access_file = "{rules}"\n{SETTINGS}')
    command = [sys.executable, "-m", "udf_server", "serve", "--config", str(settings), "--plugin", plugin(PLUGIN)]
    command += ["--no-entry-points", "--port", "0", "--metrics-port", "0", "--drain-seconds", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield json.loads(process.stdout.readline())["target"], tokens
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("function", "unit"), [("numbered", "calls"), ("threaded", "seconds")])
def test_a_caller_with_three_shares_gets_three_times_as_much_as_another(server, function, unit, monkeypatch):
    # Calls on threads are charged by their time, which differs on a busy machine.
    target, tokens = server
    found, numbers = {"etl": [], "adhoc": []}, itertools.count()

    def run(name, rows):
        variable = f"TOKEN_{next(numbers)}"
        monkeypatch.setitem(os.environ, variable, tokens[name])
        config = ClientConfig(target, 20.0, Security(token_variable=variable))
        spec = list_functions(config).find(function)
        call = replace(call_of(type("Called", (), {"spec": spec}), target), config=config)
        stream = stream_of(call, GrpcTransport(config))
        stream.submit(chunk_of(list(range(rows))))
        found[name].extend(everything(stream).values())
        stream.finish()

    # The neighbour has more streams, which makes no difference.
    streams = [("etl", 1500)] * 2 + [("adhoc", 250)] * 4
    threads = [threading.Thread(target=run, args=each) for each in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert {name: len(calls) for name, calls in found.items()} == {"etl": 3000, "adhoc": 1000}
    until = min(max(calls) for calls in found.values())
    both = {name: [call for call in calls if 300 <= call < until - 100] for name, calls in found.items()}
    assert sum(map(len, both.values())) > 2000
    spent = {name: len(calls) if unit == "calls" else sum(call % 1 for call in calls) for name, calls in both.items()}
    assert spent["etl"] / spent["adhoc"] == pytest.approx(3, rel=0.05)
