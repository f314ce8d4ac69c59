"""A Redis server for tests: a process of its own, which can be stopped and started again."""

import os
import shutil
import socket
import subprocess
import time

import pytest

SECRET = "pa55"
WITH_REDIS = (
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server, a Debian package"),
)
"""The marks of a test that starts a Redis."""


def with_redis(test):
    for mark in WITH_REDIS:
        test = mark(test)
    return test


class RedisProcess:
    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://:{SECRET}@127.0.0.1:{self.port}/0"
        self._process = None

    def start(self, *settings):
        command = ["redis-server", "--port", str(self.port), "--save", "", "--requirepass", SECRET, *settings]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ)
        for _ in range(1_000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            time.sleep(0.01)
        raise AssertionError("redis-server does not answer")

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
