"""Open streams are counted over all processes and groups of a server: as processes, with kill -9 and a reload."""

import contextlib
import dataclasses
import os
import signal

import pytest

from spark_client.base.config import ClientConfig
from spark_client.base.errors import ServerUnavailable
from spark_client.base.security import Security
from spark_client.executor.stream.transport import GrpcTransport
from spark_client.functions.directory import list_functions
from tests.ports import free_port
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.udf_server.group_servers import Site, serving
from tests.waiting import wait_until
from udf_server.security.access import hashed, new_token
from udf_server.serving.control import ask_reload

pytestmark = pytest.mark.slow


class Streams:
    """The streams that callers have open at a server."""

    def __init__(self, target):
        self.target, self.open = target, []

    def add(self, name, security=None, seconds=60.0):
        """Open a stream of a function. If the server refuses it, it is tried again for this time."""
        config = ClientConfig(self.target, 20.0, security or Security())
        spec = list_functions(config).find(name)
        config = dataclasses.replace(config, connect_seconds=seconds)
        call = dataclasses.replace(call_of(type("Called", (), {"spec": spec}), self.target), config=config)
        self.open.append(stream_of(call, GrpcTransport(config)))

    def add_too_many(self, name, security=None):
        """Open a stream of a function, which the server refuses."""
        with pytest.raises(ServerUnavailable, match=r"OVERLOADED: .* streams open"):
            self.add(name, security, 2.0)

    def asked(self, place):
        """What the function of a stream answers."""
        stream = self.open[place]
        stream.submit(chunk_of([1]))
        (answer,) = everything(stream).values()
        return answer

    def end(self, place):
        self.open.pop(place).close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        while self.open:
            with contextlib.suppress(Exception):
                self.end(0)


@pytest.mark.long
def test_streams_are_counted_over_groups_processes_crashes_and_reloads(tmp_path):
    site = Site(tmp_path)
    port = free_port()
    settings = site.settings(site.group("old", processes=2), site.group("new"), max_streams=3, metrics_port=port)
    with serving(site, settings) as (_, ready), Streams(ready["target"]) as streams:
        for name in ("pid_old", "pid_new", "plus"):
            streams.add(name)
        for name in ("pid_old", "plus"):
            streams.add_too_many(name)
        streams.end(2)
        streams.add("pid_new")
        streams.add_too_many("plus")

        # The streams of a process that was killed are opened again, and those of others keep their places.
        victim = streams.asked(0)
        assert victim in ready["groups"]["old"]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: any(line["event"] == "worker ended" for line in site.log))
        with contextlib.suppress(Exception):
            streams.end(0)
        streams.add("pid_old")
        streams.add_too_many("plus")

        # Those that leave a process which a reload has replaced are counted once.
        ask_reload(port, ["new"], changed=False)
        streams.add_too_many("plus")
        streams.end(0)
        streams.add("pid_new")
        streams.add_too_many("pid_old")


def test_the_streams_of_a_caller_are_counted_over_groups_and_processes(tmp_path):
    site = Site(tmp_path)
    tokens = {name: new_token() for name in ("etl", "adhoc")}
    access = "".join(f'[{name}]\ntoken_sha256 = "{hashed(token)}"\n' for name, token in tokens.items())
    (tmp_path / "access.toml").write_text(access)
    callers = "[callers.etl]\nmax_streams = 2\n"
    settings = site.settings(
        site.group("old", processes=2), callers, access_file=f"{tmp_path}/access.toml", max_streams_per_caller=4
    )
    secure = {}
    for name, token in tokens.items():
        (tmp_path / name).write_text(token)
        secure[name] = Security(token_file=f"{tmp_path}/{name}")
    with serving(site, settings) as (_, ready), Streams(ready["target"]) as streams:
        for name in ("pid_old", "plus"):
            streams.add(name, secure["etl"])
        for name in ("pid_old", "plus"):
            streams.add_too_many(name, secure["etl"])
        for _ in range(4):
            streams.add("pid_old", secure["adhoc"])
        streams.add_too_many("pid_old", secure["adhoc"])
        streams.end(0)
        streams.add("plus", secure["etl"])
