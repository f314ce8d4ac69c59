"""A Redis server for tests: a process of its own, which can be stopped and started again."""

import os
import shutil
import socket
import subprocess

import pytest

from tests.ports import free_port
from tests.waiting import wait_until

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
        self.port = free_port()
        self.url = f"redis://:{SECRET}@127.0.0.1:{self.port}/0"
        self._process = None

    def start(self, *settings):
        command = ["redis-server", "--port", str(self.port), "--save", "", "--requirepass", SECRET, *settings]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ)
        wait_until(self._answers)
        return self

    def _answers(self):
        assert self._process.poll() is None, "redis-server has ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
