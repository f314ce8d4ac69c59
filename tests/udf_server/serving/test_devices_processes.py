"""A worker process for each device, with a simulated library of devices; a process that is killed keeps its device."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spark_client.base.config import ClientConfig
from spark_client.base.errors import ServerUnavailable
from spark_client.base.security import Security
from spark_client.executor.stream import channels
from spark_client.executor.stream.transport import GrpcTransport
from spark_client.functions.directory import list_functions
from tests.ports import free_port
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.udf_server.group_servers import Site, serving
from tests.udf_server.serving.test_processes import page, workers
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

LIBRARY = '''
import fcntl, os, threading, time
from pathlib import Path

SLOW = 77_777

FOLDER = Path(__file__).parent
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")  # read at the import, as real libraries do


class Device:
    """In place of a GPU: it belongs to one process, computes one call at a time, and counts its rows."""

    def __init__(self, name):
        self.number = VISIBLE[int(name.removeprefix("cuda:"))]
        self._lock = (FOLDER / f"device-{self.number}.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            (FOLDER / "refused").touch()  # another process has the device
            raise
        self._computing = threading.Lock()

    def compute(self, rows):
        assert self._computing.acquire(blocking=False), "two calls at once"
        with (FOLDER / f"device-{self.number}.rows").open("a") as counted:
            counted.write("".join(f"{row} " for row in rows))
        while SLOW in rows and not (FOLDER / "released").exists():
            time.sleep(0.01)
        self._computing.release()
        return [f"{self.number} {os.getpid()} {row}" for row in rows]
'''
PLUGIN = """
import fake_cuda
import udf_server as udf


@udf.scalar(batched=True, batch_rows=4, max_queue_delay="0 s", name="computed")
class Computed:
    def open(self, context: udf.FunctionContext) -> None:
        self.device = fake_cuda.Device(context.device)

    def eval(self, x: list[int]) -> list[str]:
        return self.device.compute(x)
"""
NUMBERS = itertools.count()


@pytest.fixture
def devices(plugin, tmp_path, monkeypatch):
    """The path of the plugin; its library is a module beside it."""
    plugin(LIBRARY, "fake_cuda.py")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # Otherwise all channels of this process to one address share a connection.
    options = (*channels.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    monkeypatch.setattr(channels, "CHANNEL_OPTIONS", options)
    return plugin(PLUGIN)


def computed(target, rows, seconds=60.0):
    """Call the function over a connection of its own. Returns device, process and row of each answer."""
    name = f"DEVICES{next(NUMBERS)}"
    os.environ[name] = "t"
    config = ClientConfig(target, seconds, Security(token_variable=name))
    spec = list_functions(config).find("computed")
    stream = stream_of(call_of(type("Computed", (), {"spec": spec}), target), GrpcTransport(config))
    found = []
    for start in range(0, len(rows), 4):
        stream.submit(chunk_of(rows[start : start + 4], start))
        found += everything(stream).values()
    stream.finish()
    return [(device, int(pid), int(row)) for device, pid, row in map(str.split, found)]


def test_each_device_has_a_process_and_keeps_it_when_the_process_is_killed(devices, tmp_path):
    with workers(devices, "--devices", "0,1") as (process, ready):
        assert ready["devices"] == ["cuda:0", "cuda:1"]
        pids = dict(zip("01", ready["processes"], strict=True))
        answers, threads, killed = [], [], pids["1"]
        rows = [range(1_000 * n, 1_000 * n + 200) for n in range(16)]
        for each in rows:
            threads.append(threading.Thread(target=lambda each=each: answers.extend(computed(ready["target"], each))))
            threads[-1].start()
        wait_until((tmp_path / "device-1.rows").exists)
        os.kill(killed, signal.SIGKILL)
        for thread in threads:
            thread.join(100)
        # No row is lost or answered twice. Rows of calls that the killed process had not answered are computed again.
        assert sorted(row for _, _, row in answers) == sorted(itertools.chain.from_iterable(rows))
        counted = [int(row) for number in "01" for row in (tmp_path / f"device-{number}.rows").read_text().split()]
        assert set(counted) == {row for _, _, row in answers}
        assert {pid for device, pid, _ in answers if device == "0"} == {pids["0"]}

        wait_until(lambda: "udf_process_restarts_total 1.0" in page(ready["metrics"] + "/metrics"))
        later = []
        wait_until(lambda: later.extend(computed(ready["target"], range(4))) or {d for d, _, _ in later} == {"0", "1"})
        (successor,) = {pid for device, pid, _ in later if device == "1"}
        assert successor not in (killed, pids["0"])
        wait_until(lambda: page(ready["metrics"] + "/metrics").count("udf_device_info{") == 2)
        metrics = page(ready["metrics"] + "/metrics")
        for number in "01":
            assert f'udf_device_info{{process="{number}",device="cuda:{number}"}} 1.0' in metrics
        assert json.loads(page(ready["metrics"] + "/catalog.json"))["server"]["devices"] == ["cuda:0", "cuda:1"]
        process.terminate()
        assert process.wait(30) == 0
    log = [json.loads(line) for line in Path(f"{devices}.log").read_text().splitlines()]
    assert [line["device"] for line in log if line["event"] == "worker ended"] == ["cuda:1"]


def test_a_server_of_one_device_sees_no_other_one(devices, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    command = [sys.executable, "-m", "udf_server", "serve", "--plugin", devices, "--no-entry-points", "--devices", "1"]
    with subprocess.Popen(
        [*command, "--port", "0", "--metrics-port", "0", "--stop-with-stdin"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        ready = json.loads(process.stdout.readline())
        assert computed(ready["target"], [5]) == [("7", ready["pid"], 5)]
        assert 'udf_device_info{device="cuda:1"} 1.0' in page(ready["metrics"] + "/metrics")
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.long
def test_on_a_reload_a_model_is_opened_once_the_old_process_has_left_its_device(devices, tmp_path):
    (tmp_path / "site").mkdir()
    site, port, slow = Site(tmp_path / "site"), free_port(), []
    group = f'[groups.models]\nplugins = ["{devices}"]\ndevices = ["1"]\n'
    with serving(site, site.settings(group, metrics_port=port, drain_seconds=60)) as (_, ready):
        assert ready["devices"] == ["cuda:1"]
        target, (old,) = ready["target"], ready["groups"]["models"]
        assert computed(target, [1]) == [("1", old, 1)]
        calling = threading.Thread(target=lambda: slow.extend(computed(target, [77_777])))
        calling.start()
        wait_until(lambda: "77777" in (tmp_path / "device-1.rows").read_text())
        command = [sys.executable, "-m", "udf_server", "reload", "models", "--metrics-port", str(port)]
        with subprocess.Popen(command) as reloading:
            wait_until(lambda: any(line["event"] == "draining" for line in site.log))
            # The old process still computes, so nobody may have the device.
            with pytest.raises(ServerUnavailable):
                computed(target, [2], seconds=1.0)
            (tmp_path / "released").touch()
            assert reloading.wait(60) == 0
        calling.join(60)
        assert slow == [("1", old, 77_777)]
        assert not Path(f"/proc/{old}").exists()
        ((_, new, _),) = computed(target, [3])
        assert new != old
        assert not (tmp_path / "refused").exists()
