"""Waits for what has no notification, such as a metric; in async tests `eventually` of tests/udf_server does."""

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Return once the condition holds. Fails the test if it does not within this time, which only bounds a failure."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for does not happen"
        time.sleep(0.005)
