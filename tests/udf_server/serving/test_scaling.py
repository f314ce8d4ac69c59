"""Servers from zero to four and back while a job runs, by the signals and goals of the ScaledObject."""

import contextlib
import itertools
import json
import math
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from spark_client.base.calls import ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.runtime import RUNTIME
from spark_client.functions.directory import list_functions
from tests.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]

SCALED = Path(__file__).parents[3] / "deploy/kubernetes/components/keda/scaled-object.yaml"
MOST, TASKS = 4, 8
PLUGIN = """
import time
import udf_server as udf

@udf.scalar(timeout="10 min")
def twice(x: int) -> int:
    time.sleep(0.0015)
    return 2 * x
"""
"""The rows that a stream has in flight take few seconds: those who wait longer do not use what servers told of their
load, and change servers late."""


class Fleet:
    """Up to MOST servers at addresses that are known before any of them runs."""

    def __init__(self, plugin, folder):
        self._plugin, self._log = plugin, folder / "servers.log"
        self._ports = [free_port() for _ in range(MOST)]
        self.target = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self._running = []
        self.statuses = []
        """Exit statuses of the servers that were removed."""
        self.sizes = [0]
        """The numbers of servers, each time one was added or removed."""

    def __len__(self):
        return len(self._running)

    def add(self):
        command = [sys.executable, "-m", "udf_server", "serve", "--plugin", self._plugin, "--no-entry-points"]
        command += ["--port", str(self._ports[len(self)]), "--metrics-port", "0", "--threads-per-function", "2"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        self._running.append((process, json.loads(process.stdout.readline())["metrics"] + "/metrics"))
        self.sizes.append(len(self))

    def remove(self):
        """Stop the last one as Kubernetes does: SIGTERM, then wait until it has drained."""
        process, _ = self._running.pop()
        process.terminate()
        self.statuses.append(process.wait(60))
        process.stdout.close()
        self.sizes.append(len(self))

    def kill(self):
        for process, _ in self._running:
            process.kill()
            process.communicate()

    def samples(self, name, **labels):
        """The sum of a metric for each server."""
        found = []
        for _, url in self._running:
            with urllib.request.urlopen(url, timeout=20) as answer:
                families = text_string_to_metric_families(answer.read().decode())
                each = [sample for family in families for sample in family.samples if sample.name == name]
            found.append(sum(sample.value for sample in each if labels.items() <= sample.labels.items()))
        return found

    @property
    def log(self):
        return self._log.read_text()


def wanted(fleet, jobs):
    """The number of servers that KEDA would want: for each trigger its sum over the goal for one server."""
    triggers = yaml.safe_load(SCALED.read_text())["spec"]["triggers"]
    goals = {each["name"]: float(each["metadata"]["threshold"]) for each in triggers if each["type"] == "prometheus"}
    before, began = fleet.samples("udf_crowded_seconds_total"), time.monotonic()
    time.sleep(2.0)  # the window of the rate
    seconds = time.monotonic() - began
    crowded = [after - was for was, after in zip(before, fleet.samples("udf_crowded_seconds_total"), strict=True)]
    sums = {
        "jobs": min(jobs, 1),
        "crowded": sum(crowded) / seconds,
        "rows": sum(fleet.samples("udf_rows_in_flight")),
    }
    return min(max(math.ceil(round(sums[name] / goals[name], 2)) for name in goals), MOST)


def test_a_job_starts_the_first_server_and_loses_no_row_while_servers_come_and_go(plugin, tmp_path):
    fleet = Fleet(plugin(PLUGIN), tmp_path)
    calm, end = threading.Event(), threading.Event()

    def rows(task):
        """Many rows, then few, until the test has seen enough."""
        for number in itertools.count():
            if end.is_set():
                return
            size = 1 if calm.is_set() else 50
            if calm.is_set():
                end.wait(0.2)
            first = task * 10**9 + number * 50
            yield pa.record_batch([pa.array(range(first, first + size), pa.int64())], names=["x"])

    def task(number, call):
        sent, got = [], []

        def counted():
            for batch in rows(number):
                sent.extend(batch.column(0).to_pylist())
                yield batch

        for done in RowEngine([PlannedCall(call, (0,))], RUNTIME, ordered=True).run(counted()):
            got += done.values[0].to_pylist()
        return sent, got

    def job():
        # The driver and the tasks find no server, and wait.
        config = ClientConfig(fleet.target, connect_seconds=300.0, max_stream_seconds=1.0)
        call = ScalarCall(list_functions(config).find("twice"), 1, {"buffer-capacity": "200"}, "job", config)
        with ThreadPoolExecutor(TASKS) as threads:
            return list(threads.map(task, range(TASKS), itertools.repeat(call)))

    with contextlib.ExitStack() as stack:
        stack.callback(fleet.kill)
        driver = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(end.set)
        running = driver.submit(job)
        while not running.done() or len(fleet):
            count = wanted(fleet, not running.done())
            if count > len(fleet):
                fleet.add()
            elif count < len(fleet):
                fleet.remove()
            if len(fleet) == MOST and min(fleet.samples("udf_rows_total", outcome="ok")) > 0:
                calm.set()
            if calm.is_set() and len(fleet) == 1:
                end.set()
        results = running.result()
    assert max(fleet.sizes) == MOST and fleet.sizes[-1] == 0
    for sent, got in results:
        assert got == [2 * each for each in sent]
    assert sum(len(sent) for sent, _ in results) > 1_000
    assert len(fleet.statuses) >= MOST and not any(fleet.statuses)
    assert "cancelled after the drain timeout" not in fleet.log
