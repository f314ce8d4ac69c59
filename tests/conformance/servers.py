"""The servers of a run, and the number of calls of the functions on them."""

import contextlib
import os
import shutil
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from spark_client.embedded import EmbeddedServer
from tests.conformance.given_plugin import OPEN_VARIABLE

__all__ = ["CallCounter", "Servers"]

IDLE_SECONDS = 20.0
_COUNTED = ("udf_streams_open{", "udf_rows_total{", "udf_retries_total{")
ROOT = Path(__file__).resolve().parents[2]


class Servers:
    """Runs one server at a time in a separate process; `close` stops it."""

    def __init__(self) -> None:
        self._key: object = None
        self._server: EmbeddedServer | None = None
        self._open = Path()

    def server(self, plugin: str, settings: Mapping[str, str], key: object) -> EmbeddedServer:
        """Returns the server of a key, started if another one was running. Raises EmbeddedServerFailed."""
        key = (plugin, tuple(sorted(settings.items())), key)
        if self._server is None or self._key != key or not self._server.running:
            self.close()
            self._open = Path(tempfile.mkdtemp(prefix="conformance-")) / "open"
            path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
            own = {"UDF_CONFIG_ENTRY_POINTS": "false", "PYTHONPATH": path, OPEN_VARIABLE: str(self._open)}
            with _environment({**settings, **own}):
                self._server, self._key = EmbeddedServer([plugin]), key
        return self._server

    @property
    def most_open(self) -> int | None:
        """The largest number of calls that were open at once on the present server; None if none was counted."""
        return int(self._open.read_text()) if self._open.is_file() else None

    def close(self) -> None:
        """Stops the server. May be called twice."""
        if self._server is not None:
            self._server.stop()
            shutil.rmtree(self._open.parent, ignore_errors=True)
        self._server = self._key = None


class CallCounter:
    """Counts calls of functions, by name and version, from a server's metrics. Retries count."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._url = server.metrics_url
        self._before = self._read()

    def calls(self) -> Counter[tuple[str, str]]:
        """Returns calls since creation. Waits until no stream is open, since the server counts retries at its end."""
        deadline = time.monotonic() + IDLE_SECONDS
        pause = threading.Event()
        open_streams, calls = self._read_all()
        while open_streams > 0 and time.monotonic() < deadline:
            pause.wait(0.02)
            open_streams, calls = self._read_all()
        return calls - self._before

    def _read(self) -> Counter[tuple[str, str]]:
        return self._read_all()[1]

    def _read_all(self) -> tuple[int, Counter[tuple[str, str]]]:
        """Returns the open streams, and the calls so far by function and version."""
        url = self._url if self._url.endswith("/metrics") else f"{self._url}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            text = response.read().decode()
        streams = 0
        calls: Counter[tuple[str, str]] = Counter()
        for line in text.splitlines():
            if line.startswith(_COUNTED):
                for sample in next(iter(text_string_to_metric_families(line + "\n"))).samples:
                    if sample.name == "udf_streams_open":
                        streams += int(sample.value)
                    elif sample.labels.get("outcome") != "skipped":
                        calls[sample.labels["function"], sample.labels["version"]] += int(sample.value)
        return streams, calls


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    old = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
