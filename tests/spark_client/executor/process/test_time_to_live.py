"""State with a time-to-live: what has expired leaves the state store, also if its key does not come back."""

from collections.abc import Iterator
from typing import Annotated, Any

import hypothesis
import pytest
from hypothesis import strategies as st

import udf_server as udf
from spark_client.executor.process.state import pages
from tests.properties import examples
from tests.spark_client.executor.process.stateful import Stream, state_plan
from udf_server import ArgumentTrait, StateHint

Keyed = Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]


class Kinds(udf.ProcessTableFunction):
    """An entry of each kind, all written by each row. Returns what the entries had before the row."""

    returns = "value bigint, listed bigint, mapped bigint, kept bigint"

    def eval(
        self, ctx: udf.ProcessContext, value: Annotated[udf.ValueView[int], StateHint(ttl="3 s")],
        listed: Annotated[udf.ListView[int], StateHint(ttl="5 s")],
        mapped: Annotated[udf.MapView[int, int], StateHint(ttl="4 s")],
        kept: Annotated[udf.ValueView[int], StateHint()], r: Keyed,
    ) -> Iterator[Any]:  # fmt: skip
        yield value.value, len(listed), len(mapped), kept.value
        value.value = r.v
        listed.append(r.v)
        mapped[r.v] = r.v
        if r.v == 0:
            kept.value = r.v


class Forgotten(udf.ProcessTableFunction):
    """Whether a key is new within a second."""

    returns = "new boolean"

    def eval(
        self, ctx: udf.ProcessContext, seen: Annotated[udf.ValueView[bool], StateHint(ttl="1 s")], r: Keyed
    ) -> Iterator[Any]:
        yield (seen.is_empty,)
        if seen.is_empty:
            seen.value = True


@pytest.mark.slow
def test_keys_that_do_not_come_back_leave_the_store():
    plan, declared = state_plan(Forgotten, buckets=16)
    stream = Stream(plan, declared)
    counts = []
    with stream.transport:
        for number in range(20):
            keys = range(200 * number, 200 * number + 200)
            stream.micro_batch([(key, 1, 1) for key in keys], now=2000 * number)
            counts.append(stream.keys())
        assert max(counts) <= 400
        for number in range(20, 28):
            stream.micro_batch([(0, 1, 1)], now=2000 * number)
        assert stream.keys() == 1


def test_buckets_without_rows_are_not_changed_before_half_of_a_page_has_expired():
    plan, declared = state_plan(Forgotten, buckets=1)
    stream = Stream(plan, declared)
    with stream.transport:
        stream.micro_batch([(key, 1, 1) for key in range(4)], now=0)
        stream.micro_batch([(key, 1, 1) for key in range(4, 10)], now=900)
        assert stream.keys() == 10
        assert [row[1] for row in stream.micro_batch([(0, 1, 1)], now=1000)] == [True]
        assert stream.keys() == 7


def test_a_bucket_that_an_older_version_wrote_is_cleaned():
    """Its attributes do not tell when state expires."""
    plan, declared = state_plan(Forgotten, buckets=3)
    stream = Stream(plan, declared)
    with stream.transport:
        stream.micro_batch([(key, 1, 1) for key in range(50)], now=0)
        for bucket, (description, count, *rest, due) in stream.store.values.items():
            stream.store.values[bucket] = (description, count, *rest, due[: 8 * count])
        for number in range(8):
            stream.micro_batch([(99, 1, 1)], now=9000 + number)
        assert stream.keys() == 1


BATCHES = st.lists(
    st.tuples(st.integers(0, 3000), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=8)), max_size=12
)
"""How far the clock goes on in milliseconds, and then keys and values."""


@pytest.mark.slow
@hypothesis.given(batches=BATCHES)
@examples(25)
def test_a_function_sees_what_it_would_see_if_nothing_were_removed(batches):
    """A model in Python has every write with its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE_BYTES", 600)
        plan, declared = state_plan(Kinds)
        stream = Stream(plan, declared)
        now, model = 0, {}
        with stream.transport:
            for later, rows in batches:
                now += later
                expected = []
                for key, value in rows:
                    one, many, items, kept = model.setdefault(key, [None, [], {}, None])
                    expected.append((
                        key, one[0] if one and now - one[1] < 3000 else None,
                        sum(now - at < 5000 for at in many), sum(now - at < 4000 for at in items.values()), kept,
                    ))  # fmt: skip
                    model[key][0] = (value, now)
                    many.append(now)
                    items[value] = now
                    model[key][3] = 0 if value == 0 else kept
                found = stream.micro_batch([(k, v, 1) for k, v in rows], now=now)
                assert sorted((row[:5] for row in found), key=repr) == sorted(expected, key=repr)
            for number in range(9):
                stream.micro_batch([(7, 1, 1)], now=now + 10_000 + number)
            assert stream.keys() == 1 + sum(kept is not None for *_, kept in model.values())
