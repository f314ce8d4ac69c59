"""What a server does at intervals."""

import sys
from types import SimpleNamespace

import pytest

import udf_server as udf
from tests.udf_server.talk import eventually
from tests.waiting import wait_until
from udf_server.hosting.load import Load
from udf_server.hosting.registry import Registry
from udf_server.serving import upkeep
from udf_server.serving.config import ServerConfig
from udf_server.serving.server import running_server
from udf_server.serving.upkeep import LoopWatch


@udf.scalar
def f(x: int) -> int:
    return x


async def test_an_error_is_logged_and_does_not_end_the_heartbeat(monkeypatch, caplog):
    monkeypatch.setattr(upkeep, "HEARTBEAT_SECONDS", 0.01)
    beats = []

    def observe():
        beats.append(caplog.records.copy())
        if len(beats) == 1:
            raise ZeroDivisionError("a bug")

    async with running_server(ServerConfig(port=0, metrics_port=0), Registry([("test", f)])) as server:
        monkeypatch.setattr(server.service, "observe", observe)
        await eventually(lambda: len(beats) > 2)
    (logged,) = (record for record in beats[1] if record.message == "upkeep failed")
    assert str(logged.exc_info[1]) == "a bug"


@pytest.mark.parametrize(("active", "seconds"), [([True, True, False], 0.0001), ([True, False], 0.005)])
def test_functions_that_share_the_interpreter_take_shorter_turns(monkeypatch, active, seconds):
    looks = []

    class Meter:
        def look(self, wait):
            looks.append(sys.getswitchinterval())
            return Load(0.1, 1.0, saturated=False)

    def function(used):
        return SimpleNamespace(
            active=used, running_executor=None, adjust=lambda load: None, spec=SimpleNamespace(key="f@1")
        )

    monkeypatch.setattr(upkeep, "LoadMeter", Meter)
    monkeypatch.setattr(upkeep, "LOOK_SECONDS", 0.001)
    before = sys.getswitchinterval()
    host = SimpleNamespace(hosted=lambda: [function(used) for used in active])
    watch = LoopWatch(host, lambda hosted: None)
    try:
        wait_until(lambda: len(looks) > 2)
    finally:
        watch.stop()
    assert looks[2] == pytest.approx(seconds)
    wait_until(lambda: sys.getswitchinterval() == before)
