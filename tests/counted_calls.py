"""Counts the calls of functions: a server makes those of plain functions on several threads."""

import threading
from collections import Counter
from typing import Any

__all__ = ["CountedCalls"]


class CountedCalls(Counter[Any]):
    """How often each call was made. `calls[name] += 1` loses calls that are made at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def add(self, name: object) -> None:
        """Counts a call."""
        with self._lock:
            self[name] += 1
