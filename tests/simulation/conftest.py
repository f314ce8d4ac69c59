"""Ends what a simulated world holds together with its test."""

import gc
import sys
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _worlds_end_with_their_test() -> Iterator[None]:
    """Collects coroutines of processes that have crashed, while a local variable of the test no longer holds them.

    A later test would otherwise be blamed for what they say when they are destroyed.
    """
    yield
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
    finally:
        sys.unraisablehook = hook
