"""Streams of one task are opened at the same time."""

import queue
import threading
from types import SimpleNamespace

import pytest

from spark_client.executor.stream.runtime import Runtime


def test_streams_of_several_calls_are_opened_at_the_same_time_and_returned_in_order():
    together = threading.Barrier(3)

    def open_stream(call, _):
        together.wait(60)
        return call

    assert Runtime(open_stream).open_streams([(call, None) for call in "abc"]) == ["a", "b", "c"]


def test_the_first_call_that_cannot_be_opened_counts_and_the_others_are_closed():
    later, closed = threading.Event(), queue.SimpleQueue()

    def open_stream(call, _):
        if call == "third":
            raise ValueError(call)
        if call == "second":
            later.wait(60)
            raise ValueError(call)
        if call == "slow":
            refused.wait(60)
        return SimpleNamespace(close=lambda: closed.put(call))

    refused = threading.Event()
    threading.Timer(0.05, later.set).start()
    with pytest.raises(ValueError, match="second"):
        Runtime(open_stream).open_streams([(call, None) for call in ("first", "second", "third", "slow")])
    assert closed.get(timeout=60) == "first"
    refused.set()
    assert closed.get(timeout=60) == "slow", "a stream that opens after the refusal is closed, too"
