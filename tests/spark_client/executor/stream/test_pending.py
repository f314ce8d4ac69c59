"""Rows in flight: for any order of answers, each row is answered once and the others can be sent again."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.errors import ProtocolViolation
from spark_client.executor.stream.chunks import COMPACT_BELOW, Chunk, as_array
from spark_client.executor.stream.in_flight import ChunksInFlight
from tests.spark_client.scripted import row_error

sizes = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def sent(sizes, pending=None):
    """Chunks of these sizes on a fresh stream; the value of a row is ten times its position."""
    pending = pending or ChunksInFlight()
    first = 0
    for number, size in enumerate(sizes):
        values = pa.chunked_array([pa.array([10 * row for row in range(first, first + size)])])
        pending.add(Chunk(number, range(first, first + size), [values], values.nbytes, first_row=first))
        first += size
    return pending


def resent(chunks):
    """The chunks on a new stream, and the position there to the row in the owner."""
    pending, rows = ChunksInFlight(), []
    for chunk in chunks:
        chunk.first_row = len(rows)
        pending.add(chunk)
        rows.extend(int(row) for row in chunk.rows)
    return pending, rows


def left(pending):
    """The unanswered rows and their values, as they would be sent again."""
    found = {}
    for chunk in pending.rest():
        values = chunk.columns[0].to_pylist()
        assert len(values) == len(chunk.rows)
        found.update(zip(map(int, chunk.rows), values, strict=True))
    return found


def rows_of(answers):
    return [int(row) for answer in answers for row in answer.rows]


def answer_some(data, pending, open_rows):
    """Answers some of the open rows of a stream in one of two ways; returns the result of ChunksInFlight."""
    if data.draw(st.booleans(), label="scattered"):
        rows = data.draw(st.permutations(sorted(open_rows)))[: data.draw(st.integers(1, len(open_rows)))]
        values = pa.array([row + 1 for row in rows])
        return rows, pending.answer_scattered(np.array(rows, np.int64), values, {})
    first = data.draw(st.sampled_from(sorted(open_rows)))
    rows = [first]
    while rows[-1] + 1 in open_rows and rows[-1] + 1 not in pending._chunks and data.draw(st.booleans()):
        rows.append(rows[-1] + 1)
    return rows, pending.answer(first, pa.array([row + 1 for row in rows]), {})


@given(sizes, st.data())
def test_each_row_is_answered_once_in_any_order_and_the_rest_keeps_its_values(sizes, data):
    pending = sent(sizes)
    open_rows = set(range(sum(sizes)))
    while open_rows:
        rows, answers = answer_some(data, pending, open_rows)
        assert sorted(rows_of(answers)) == sorted(rows)
        for answer in answers:
            assert answer.values.to_pylist() == [row + 1 for row in as_array(answer.rows).tolist()]
        open_rows -= set(rows)
        assert pending.rows == len(open_rows)
        assert left(pending) == {row: 10 * row for row in open_rows}
        assert (pending.bytes > 0) == bool(open_rows)
    assert (pending.bytes, pending.rest()) == (0, [])


@given(sizes, st.data())
def test_rows_sent_again_and_again_are_still_answered_once(sizes, data):
    pending, rows = sent(sizes), list(range(sum(sizes)))
    answered = []
    while pending.rows:
        open_rows = {place for place, row in enumerate(rows) if row not in answered}
        _, answers = answer_some(data, pending, open_rows)
        answered += rows_of(answers)
        if data.draw(st.booleans(), label="lost"):
            pending, rows = resent(pending.rest())
    assert sorted(answered) == list(range(sum(sizes)))


@given(sizes, st.data())
def test_an_answer_for_a_row_that_is_not_awaited_is_a_violation(sizes, data):
    pending = sent(sizes)
    total = sum(sizes)
    done = data.draw(st.sets(st.integers(0, total - 1), max_size=total - 1))
    if done:
        pending.answer_scattered(np.array(sorted(done)), pa.array(sorted(done)), {})
    wrong = data.draw(st.sampled_from([*done, -1, total, total + 5]))
    with pytest.raises(ProtocolViolation, match="answered"):
        pending.answer_scattered(np.array([wrong]), pa.array([0]), {})
    with pytest.raises(ProtocolViolation, match=r"answered|exceeds its batch"):
        pending.answer(wrong, pa.array([0]), {})
    assert pending.rows == total - len(done)


def test_a_row_twice_in_one_result_is_a_violation():
    with pytest.raises(ProtocolViolation, match="twice in one result"):
        sent([3]).answer_scattered(np.array([1, 1]), pa.array([0, 0]), {})
    with pytest.raises(ProtocolViolation, match="twice in one result"):
        sent([3]).answer_scattered(np.array([0, 1, 1]), pa.array([0, 0, 0]), {})


def test_a_result_that_reaches_into_the_next_batch_is_a_violation():
    with pytest.raises(ProtocolViolation, match="a result for 3 rows from 1 on exceeds its batch"):
        sent([3, 3]).answer(1, pa.array([0, 0, 0]), {})


def test_a_result_without_rows_answers_nothing():
    pending = sent([3])
    assert pending.answer(1, pa.array([], pa.int64()), {}) == []
    assert pending.answer_scattered(np.array([], np.int64), pa.array([], pa.int64()), {}) == []
    assert pending.rows == 3


def test_errors_go_with_their_rows_when_a_result_spans_batches():
    pending = sent([2, 2])
    errors = {0: row_error("first"), 3: row_error("last")}
    answers = pending.answer_scattered(np.array([3, 0, 1, 2]), pa.array([None, 1, 2, None], pa.int64()), errors)
    found = {int(answer.rows[index]): error.message for answer in answers for index, error in answer.errors.items()}
    assert found == {3: "first", 2: "last"}


def test_a_single_slow_row_does_not_hold_the_memory_of_its_batch():
    pending = sent([1000])
    before = pending.bytes
    rows = np.array([row for row in range(1000) if row != 567])
    pending.answer_scattered(rows, pa.array(rows), {})
    assert pending.bytes <= before // 1000 + 1
    assert pending._chunks[0].columns[0].to_pylist() == [5670]


def test_memory_is_let_go_once_most_rows_are_answered_and_not_at_each():
    pending = sent([100])
    copied = []
    for row in range(99):
        before = pending._chunks[0].columns
        pending.answer_scattered(np.array([row]), pa.array([0]), {})
        if pending._chunks[0].columns is not before:
            copied.append(len(pending._chunks[0].columns[0]))
    assert copied == [25, 6, 1]
    assert all(rows * COMPACT_BELOW <= held for rows, held in zip(copied, [100, *copied], strict=False))


def test_part_of_a_chunk_has_its_share_of_everything():
    values = pa.chunked_array([pa.array(range(10))])
    part = Chunk("owner", range(50, 60), [values], 1000).part(2, 5)
    assert (part.owner, list(part.rows), part.bytes) == ("owner", [52, 53, 54, 55, 56], 500)
    assert part.columns[0].to_pylist() == [2, 3, 4, 5, 6]


def test_a_chunk_of_a_call_without_arguments_can_be_sent_again():
    chunk = Chunk("owner", range(5), [], 1)
    chunk.answer(np.array([0, 2, 3, 4]))
    chunk.compact()
    assert list(chunk.rest().rows) == [1]
