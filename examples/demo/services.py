"""Starts the look-up service as a process, and reads its statistics."""

import json
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from types import TracebackType
from typing import Any

__all__ = ["LookupProcess", "Statistics"]


@dataclass(frozen=True)
class Statistics:
    """The counts of the service since the previous request for them."""

    answers: int
    most_at_once: int


class LookupProcess:
    """Runs the look-up service during a `with` block."""

    base_url: str

    def __enter__(self) -> "LookupProcess":
        command = [sys.executable, "-m", "examples.demo.lookup_service"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.base_url = self._process.stdout.readline().strip()
        if not self.base_url:
            raise RuntimeError(f"the look-up service ended with status {self._process.wait()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.communicate()

    def statistics(self) -> Statistics:
        with urllib.request.urlopen(f"{self.base_url}statistics", timeout=10) as response:
            seen: dict[str, Any] = json.load(response)
        return Statistics(**seen)
