"""What a server does at intervals."""

import udf_server as udf
from tests.udf_server.talk import eventually
from udf_server.hosting.registry import Registry
from udf_server.serving import upkeep
from udf_server.serving.config import ServerConfig
from udf_server.serving.server import running_server


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
