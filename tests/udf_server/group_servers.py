"""Servers with groups, as processes: their files, their start, and calls of their functions."""

import contextlib
import json
import os
import subprocess
import sys
import urllib.request

from spark_client.base.config import ClientConfig
from spark_client.base.security import Security
from spark_client.executor.stream.transport import GrpcTransport
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of

__all__ = ["LIBRARY", "MINE", "Site", "called", "opened", "page", "serving"]

LIBRARY = "VERSION = {version!r}\n"
PLUGIN = """
import os
import shapelib
import udf_server as udf

@udf.scalar(name="shape_{name}")
async def shape(x: int) -> str:
    return f"{{shapelib.VERSION}} of {{os.environ['KEY']}}"

@udf.scalar(name="pid_{name}", deterministic=False)
async def pid(x: int) -> int:
    return os.getpid()

@udf.scalar(name="end_{name}", deterministic=False, timeout="2 s")
async def end(x: int) -> int:
    os._exit(3)
"""
MINE = """
import udf_server as udf

@udf.scalar
async def plus(x: int) -> int:
    return x + 1
"""


class Site:
    """The files of a server: two plugins, each with a version of one library on its own path, and the settings."""

    def __init__(self, folder):
        self.folder = folder
        for name, version in (("old", "1.26"), ("new", "2.1")):
            (folder / name).mkdir()
            (folder / name / "shapelib.py").write_text(LIBRARY.format(version=version))
            (folder / f"{name}.py").write_text(PLUGIN.format(name=name))
        (folder / "mine.py").write_text(MINE)

    def group(self, name, **more):
        table = {"plugins": [f"{self.folder}/{name}.py"], **more}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        return f'[groups.{name}]\n{lines}environment = {{ PYTHONPATH = "{self.folder}/{name}", KEY = "$SERVER_KEY" }}\n'

    def settings(self, *tables, **settings):
        own = {"port": 0, "metrics_port": 0, "processes": 1, "entry_points": False, "log_format": "json"}
        own |= {"plugin": [f"{self.folder}/mine.py"], "drain_seconds": 5, **settings}
        path = self.folder / "server.toml"
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in own.items()) + "".join(tables))
        return path

    @property
    def log(self):
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines() if line.startswith("{")]


@contextlib.contextmanager
def serving(site, path):
    command = [sys.executable, "-m", "udf_server", "serve", "--config", str(path)]
    environment = {**os.environ, "SERVER_KEY": "a key"}
    with (site.folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        line = process.stdout.readline()
        yield process, json.loads(line) if line else {}
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.communicate()


def page(ready, path):
    with urllib.request.urlopen(ready["metrics"] + path, timeout=20) as answer:
        return answer.read().decode()


def opened(target, name, security=None):
    """A stream of a function."""
    config = ClientConfig(target, 30.0, security or Security())
    spec = list_functions(config).find(name)
    return stream_of(call_of(type("Called", (), {"spec": spec}), target), GrpcTransport(config))


def called(target, name, values=(1,), security=None):
    """What a function answers for each value."""
    stream = opened(target, name, security)
    try:
        stream.submit(chunk_of(list(values)))
        found = everything(stream)
        stream.finish()
    finally:
        stream.close()
    return [found[row] for row in sorted(found)]
