"""QueuedOutput: what a process writes never waits for whoever reads it."""

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_server.base.output import QueuedOutput

PIPE_BYTES = 1 << 20
"""More than a pipe holds."""


@pytest.fixture
def pipe():
    """The descriptors of a pipe, the reading end first."""
    ends = list(os.pipe())
    yield ends
    for end in ends:
        os.close(end)


def all_of(descriptor, size):
    data = b""
    while len(data) < size:
        data += os.read(descriptor, 1 << 16)
    return data


def test_lines_that_find_no_room_are_dropped_whole_and_counted(pipe):
    output = QueuedOutput(pipe[1], most_bytes=PIPE_BYTES)
    lines = [b"%07d\n" % number * 1000 for number in range(1000)]
    for line in lines:
        output.write(line)
    assert 0 < output.dropped < 1000
    assert not output.flush(0.0)
    kept = len(lines) - output.dropped
    data = all_of(pipe[0], kept * 8000)
    found = {data[start : start + 8000] for start in range(0, len(data), 8000)}
    assert len(data) == kept * 8000
    assert len(found) == kept and found <= set(lines)
    assert output.flush(60)
    output.write(b"again")
    assert all_of(pipe[0], 5) == b"again"


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 200))
def test_what_is_not_dropped_is_written_in_order(lengths, most):
    lines = [b"%d%s\n" % (number, b"x" * length) for number, length in enumerate(lengths)]
    read, write = os.pipe()
    try:
        output = QueuedOutput(write, most)
        for line in lines:
            output.write(line)
        assert output.flush(60)
    finally:
        os.close(write)
    with os.fdopen(read, "rb") as file:
        found = file.readlines()
    assert len(found) == len(lines) - output.dropped
    assert found == [line for line in lines if line in set(found)]


def test_a_line_longer_than_the_queue_is_written_if_nothing_else_waits(pipe):
    output = QueuedOutput(pipe[1], most_bytes=10)
    output.write(b"x" * 100)
    assert all_of(pipe[0], 100) == b"x" * 100
    assert output.dropped == 0


def test_output_that_cannot_be_read_any_more_is_dropped():
    read, write = os.pipe()
    os.close(read)
    output = QueuedOutput(write)
    output.write(b"x")
    assert output.flush(60)
    os.close(write)
    assert output.dropped == 1


def test_threads_write_whole_lines(pipe):
    output = QueuedOutput(pipe[1])

    def write(letter):
        for _ in range(100):
            output.write(letter * 9 + b"\n")

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = all_of(pipe[0], 3000).splitlines()
    assert {line[:1] * 9 for line in lines} == set(lines) == {b"a" * 9, b"b" * 9, b"c" * 9}
