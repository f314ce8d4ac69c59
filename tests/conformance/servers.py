"""The servers of a run: one with the functions made from the cases' words, one with the user's own."""

import contextlib
import os
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from spark_client.embedded import EmbeddedServer
from tests.conformance.functions.plugin import CASES_VARIABLE

__all__ = ["CallCounter", "Servers"]

PLUGIN = "tests.conformance.functions.plugin"
IDLE_SECONDS = 20.0
_COUNTED = ("udf_streams_open{", "udf_rows_total{", "udf_retries_total{")
ROOT = Path(__file__).resolve().parents[2]


class Servers:
    """Started when first needed, each a process of its own; `close` ends them."""

    def __init__(self, folder: Path, functions: Path | None = None) -> None:
        self._folder = folder.resolve()
        self._functions = functions.resolve() if functions is not None else None
        self._running: dict[str, EmbeddedServer] = {}

    def built(self) -> EmbeddedServer:
        """With the functions made from words. Raises EmbeddedServerFailed."""
        return self._server(PLUGIN)

    def given(self, *, fresh: bool = False) -> EmbeddedServer | None:
        """With the functions of the user's file, if there is one; a new process if `fresh`, so that they start anew."""
        if self._functions is None:
            return None
        if fresh and (old := self._running.pop(str(self._functions), None)) is not None:
            old.stop()
        return self._server(str(self._functions))

    def loaded(self, plugin: str) -> EmbeddedServer:
        """With the functions of a module. Raises EmbeddedServerFailed."""
        return self._server(plugin)

    def close(self) -> None:
        """Safe to call twice."""
        while self._running:
            self._running.popitem()[1].stop()

    def _server(self, plugin: str) -> EmbeddedServer:
        server = self._running.get(plugin)
        if server is None or not server.running:
            path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
            settings = {CASES_VARIABLE: str(self._folder), "UDF_CONFIG_ENTRY_POINTS": "false", "PYTHONPATH": path}
            with _environment(settings):
                server = self._running[plugin] = EmbeddedServer([plugin])
        return server


class CallCounter:
    """Counts calls of functions, by name and version, from a server's metrics. Retries count."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._url = server.metrics_url
        self._before = self._read()

    def calls(self) -> Counter[tuple[str, str]]:
        """Calls since this was made. Waits until no stream is open, since the server counts retries at its end."""
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
        """Streams open now, and calls made so far by function and version."""
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
