"""Threads starts threads and creates the locks and queues on which they wait.

A test can pass a subclass whose threads take turns, so that a run can be repeated exactly.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["THREADS", "Threads"]


class Threads:
    """The threads of the interpreter."""

    def start(self, name: str, target: Callable[..., object], *arguments: Any) -> threading.Thread:
        """Start a daemon thread that calls `target`."""
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    def ident(self) -> int:
        """The kernel's identifier of the calling thread."""
        return threading.get_native_id()

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait."""
        time.sleep(seconds)

    def event(self) -> threading.Event:
        return threading.Event()

    def condition(self) -> threading.Condition:
        return threading.Condition()

    def lock(self) -> "threading.RLock":
        """A reentrant lock that a thread may hold while it waits."""
        return threading.RLock()

    def queue(self) -> "queue.SimpleQueue[Any]":
        """A queue without a bound: its user must bound it."""
        return queue.SimpleQueue()


THREADS = Threads()
