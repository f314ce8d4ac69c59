"""State of process table functions on streams, against the harness that drives them step by step."""

import collections
import dataclasses
import json
from collections.abc import Iterator
from typing import Annotated, Any

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import udf_server as udf
from spark_client.base.errors import FunctionFailed, StateMismatch
from spark_client.executor.process.state import pages
from tests.properties import examples
from tests.spark_client.executor.process.stateful import ROW, Stream, at, state_plan
from udf_server import ArgumentTrait, StateHint
from udf_server.testing import ProcessTableHarness, table

Keyed = Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]


@dataclasses.dataclass
class Seen:
    count: int = 0


class Machine(udf.ProcessTableFunction):
    """The value of a row is its action: timers of both kinds, in the past as well, and clearing."""

    returns = "what string, count bigint, recent bigint, watermark bigint"

    def eval(
        self, ctx: udf.ProcessContext, seen: Annotated[Seen, StateHint()],
        recent: Annotated[udf.ListView[int], StateHint(ttl="5 s")], r: Keyed,
    ) -> Iterator[Any]:  # fmt: skip
        times = ctx.time_context(int)
        seen.count += 1
        recent.append(r.v)
        match r.v:
            case 0:
                ctx.clear_all()
            case 1:
                times.register_on_time("named", times.time() + 4000)
            case 2:
                times.register_on_time(times.time() + 2000)
            case 3:
                times.register_on_time("past", 1)
            case 4:
                times.clear_all_timers()
        yield "row", seen.count, len(recent), times.current_watermark()

    def on_timer(
        self, ctx: udf.ProcessContext, seen: Annotated[Seen, StateHint()],
        recent: Annotated[udf.ListView[int], StateHint(ttl="5 s")],
    ) -> Iterator[Any]:  # fmt: skip
        yield ctx.current_timer or "unnamed", seen.count, len(recent), ctx.time_context(int).current_watermark()
        if ctx.current_timer == "named" and seen.count < 9:
            seen.count += 3
            ctx.time_context(int).register_on_time("named", ctx.time_context(int).time() + 1000)


class Trail(udf.ProcessTableFunction):
    """The number of rows so far."""

    returns = "count bigint"

    def eval(self, seen: Annotated[Seen, StateHint()], r: Keyed) -> Iterator[Any]:
        seen.count += 1
        yield (seen.count,)


BATCHES = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.integers(0, 4),
        st.lists(
            st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.integers(0, 5), st.integers(0, 30)), max_size=12
        ),
    ),
    max_size=8,
)
"""How far watermark and clock go on, in seconds, and then the rows."""


def by_key(rows, *, watermarks=True):
    found = collections.defaultdict(list)
    for key, *rest in rows:
        found[key].append(tuple(rest if watermarks else [*rest[:3], *rest[4:]]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("order", [(), (("ts", False, False), ("v", True, True))])
@hypothesis.given(batches=BATCHES)
@examples(12)
def test_micro_batches_give_what_the_same_steps_give_in_the_harness(order, batches):
    """Pages are so small here that they split all the time, and every micro-batch starts with empty caches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "PAGE_BYTES", 400)
        plan, declared = state_plan(Machine, order_by=order)
        stream = Stream(plan, declared)
        words = ["ts", "v DESC NULLS LAST"] if order else []
        harness = ProcessTableHarness(
            Machine, {"r": table(ROW, partition_by="k", order_by=words)}, on_time="ts", also_batch=False
        )
        watermark = now = 0
        for ahead, later, rows in [*batches, (100, 0, []), (1, 0, [])]:
            watermark, now = watermark + ahead * 1000, now + later * 1000
            harness.advance_clock(later * 1000)
            if watermark:
                harness.watermark(watermark)
            if order:
                # A row exactly at the watermark is on time for Spark and late for the harness, which follows Flink.
                rows = [(k, v, second + 0.5) for k, v, second in rows]
            for k, v, second in rows:
                harness.row("r", (k, v, at(second)))
            # Released rows see the previous watermark of their bucket, which may be an older one.
            expected = by_key([tuple(row) for row in harness.take()], watermarks=not order)
            assert by_key(stream.micro_batch(rows, watermark, now), watermarks=not order) == expected
        stream.transport.close()


def test_a_row_exactly_at_the_watermark_is_on_time_where_order_by_holds_it():
    plan, declared = state_plan(Machine, order_by=(("ts", False, False),))
    stream = Stream(plan, declared)
    with stream.transport:
        assert stream.micro_batch([(1, 1, 5), (1, 1, 4)], 5_000) == []
        assert [row[-1] for row in stream.micro_batch([], 6_000)] == [at(5)]


def test_rows_of_a_function_before_are_processed_before_the_watermark_they_came_with():
    plan, declared = state_plan(Machine, rows_first=True)
    with Stream(plan, declared).transport as transport:
        stream = Stream(plan, declared)
        stream.transport = transport
        assert stream.micro_batch([(1, 1, 3)], 5_000) == [(1, "row", 1, 1, None, at(3))]
        found = stream.micro_batch([(1, 5, 6)], 8_000)
        assert [(what, watermark) for _, what, _, _, watermark, _ in found] == [
            ("row", 5_000),
            ("named", 8_000),
            ("named", 8_000),
        ]


@pytest.mark.slow
@hypothesis.given(batches=BATCHES)
@examples(12)
def test_late_rows_of_a_function_before_are_kept_or_dropped_whatever_the_number_of_buckets_is(batches):
    """Rows of a key come in order while it has state, and no row is dropped that leaves them in order."""
    found = []
    for buckets in (1, 2, 7):
        plan, declared = state_plan(Trail, order_by=(("ts", False, False),), buckets=buckets, rows_first=True)
        stream, watermark, output = Stream(plan, declared), 0, []
        with stream.transport:
            for ahead, _, rows in [*batches, (100, 0, []), (1, 0, [])]:
                watermark += ahead * 1000
                output.append(sorted(stream.micro_batch(rows, watermark), key=str))
        found.append(output)
    assert found[0] == found[1] == found[2]
    released = collections.defaultdict(list)
    for key, time in ((row[0], row[-1]) for batch in found[0] for row in sorted(batch, key=lambda row: row[1])):
        released[key].append(at(-1) if time is None else time)
    assert all(times == sorted(times) for times in released.values())


def test_a_row_that_a_function_before_passes_on_late_is_dropped_only_if_a_later_one_of_its_key_was_released(caplog):
    plan, declared = state_plan(Trail, order_by=(("ts", False, False),), rows_first=True)
    stream = Stream(plan, declared)
    with stream.transport:
        assert stream.micro_batch([(1, 0, 8), (1, 1, 3)], 10_000) == [(1, 1, at(3)), (1, 2, at(8))]
        found = stream.micro_batch([(1, 2, 7), (1, 3, 8), (2, 4, 7)], 20_000)
        assert sorted(found) == [(1, 3, at(8)), (2, 1, at(7))]
        (record,) = caplog.records
        assert "function trail@1, uid 'test': ORDER BY dropped 1 late rows of a micro-batch" in record.getMessage()


@pytest.mark.slow
def test_the_store_is_asked_for_few_pages_and_forgets_keys_without_state():
    plan, declared = state_plan(Machine, buckets=1)
    stream = Stream(plan, declared)
    stream.micro_batch([(key, 5, 1) for key in range(20_000)])
    assert stream.keys() == 20_000
    stream.micro_batch([(3, 5, 1)])
    before = stream.store.writes
    stream.micro_batch([(3, 5, 1)])
    assert stream.store.writes == before + 1
    assert len(stream.store.maps[0]) > 10
    stream.micro_batch([(key, 0, 1) for key in range(20_000)])
    assert stream.keys() == 0
    stream.transport.close()


def test_a_key_with_more_rows_than_a_bundle_goes_in_parts():
    plan, declared = state_plan(Machine, size=7)
    stream = Stream(plan, declared)
    found = stream.micro_batch([(k, 5, 1) for _ in range(30) for k in (1, 2)])
    assert {key: [row[1] for row in rows] for key, rows in by_key(found).items()} == {
        1: list(range(1, 31)), 2: list(range(1, 31)),
    }  # fmt: skip
    stream.transport.close()


class Other(Machine):
    name = "machine"
    version = "2"

    def eval(self, ctx: udf.ProcessContext, seen: udf.ValueView[str], r: Keyed) -> Iterator[Any]:  # type: ignore[override]
        yield "row", 1, 1, None

    on_timer = None  # type: ignore[assignment]


def test_state_of_another_schema_is_refused_with_what_was_found_and_expected():
    plan, declared = state_plan(Machine)
    stream = Stream(plan, declared)
    stream.micro_batch([(1, 5, 1)])
    other, changed = state_plan(Other)
    stream.plan = other
    stream.transport.close()
    stream = Stream(other, changed)
    stream.store.values = {
        bucket: (plan.description(), 1, 0, None, None, np.full(1, pages.NEVER).tobytes()) for bucket in range(3)
    }
    with pytest.raises(StateMismatch) as raised:
        stream.micro_batch([(1, 5, 1)])
    assert str(raised.value) == (
        "function machine@2, uid 'test': its state does not fit the checkpoint, which machine@1 wrote: "
        "state entry 'seen': found struct<count:bigint> in the checkpoint, expected string; "
        "state entry 'recent': found array<struct<value:bigint,written:bigint>> in the checkpoint, expected nothing. "
        "Start from a new checkpoint, or call the function as it was"
    )
    stream.transport.close()


@pytest.mark.parametrize("first", [(), (("ts", False, False),)])
def test_rows_that_are_held_by_another_order_are_not_forgotten(first):
    """Without ORDER BY the function would never get the rows that the checkpoint holds."""
    stream = Stream(*state_plan(Machine, order_by=first))
    stream.micro_batch([(1, 5, 1)])
    stream.plan, _ = state_plan(Machine, order_by=() if first else (("ts", False, False),))
    rows = "{'r': 'struct<k:bigint,v:bigint,ts:timestamp>'}"
    found, expected = (rows, "nothing") if first else ("nothing", rows)
    with pytest.raises(StateMismatch) as raised:
        stream.micro_batch([(1, 5, 2)])
    assert f": held rows: found {found} in the checkpoint, expected {expected}. " in str(raised.value)
    stream.transport.close()


@pytest.mark.parametrize("key", range(6))
def test_another_number_of_buckets_is_refused_wherever_the_keys_are(key):
    """The rows of the second micro-batch may be in buckets that have no state."""
    plan, declared = state_plan(Machine, buckets=64)
    stream = Stream(plan, declared)
    stream.micro_batch([(key, 5, 1)])
    stream.plan, _ = state_plan(Machine, buckets=3)
    with pytest.raises(StateMismatch, match="buckets: found 64 in the checkpoint, expected 3"):
        stream.micro_batch([(key, 5, 2)])
    stream.plan = plan
    assert [row[2] for row in stream.micro_batch([(key, 5, 2)])] == [2]
    stream.transport.close()


def test_state_of_keys_of_another_column_is_refused():
    plan, declared = state_plan(Machine)
    stream = Stream(plan, declared)
    stream.micro_batch([(1, 5, 1)])
    stream.plan, _ = state_plan(Machine, partition_by=["v"])
    with pytest.raises(
        StateMismatch, match=r": columns of the key: found \{'r': \['k'\]\} in the .* \{'r': \['v'\]\}\. "
    ):
        stream.micro_batch([(1, 5, 2)])
    stream.transport.close()
    renamed = pa.schema([field.with_name(field.name.upper()) for field in ROW])
    state_plan(Machine, schema=renamed, partition_by=["K"], time="TS")[0].require_fit(plan.description())


def test_a_checkpoint_without_the_columns_of_keys_is_used_and_gets_them():
    stream = Stream(*state_plan(Machine))
    stream.micro_batch([(1, 5, 1)])
    for bucket, about in stream.store.values.items():
        old = json.loads(about[0])
        del old["columns of the key"]
        stream.store.values[bucket] = (json.dumps(old), *about[1:])
    assert [row[2] for row in stream.micro_batch([(1, 5, 2)])] == [2]
    stream.plan, _ = state_plan(Machine, partition_by=["v"])
    with pytest.raises(StateMismatch, match="columns of the key"):
        stream.micro_batch([(1, 5, 2)])
    stream.transport.close()


class Fragile(udf.ProcessTableFunction):
    returns = "v bigint"

    def eval(self, r: Keyed) -> Iterator[Any]:
        yield (100 // r.v,)


def test_a_row_without_a_time_is_the_earliest():
    plan, declared = state_plan(Fragile, order_by=(("ts", False, False),))
    stream = Stream(plan, declared)
    with stream.transport:
        assert stream.micro_batch([(1, 1, 5), (1, 1, -4), (1, 1, None)]) == []
        assert [row[-1] for row in stream.micro_batch([], 6_000)] == [None, at(-4), at(5)]


def test_a_failure_names_the_key():
    plan, declared = state_plan(Fragile)
    stream = Stream(plan, declared)
    with pytest.raises(FunctionFailed, match=r"fragile@1: a segment of the key \(k=7\) failed: .*division"):
        stream.micro_batch([(1, 1, 1), (7, 0, 1)])
    stream.transport.close()


@hypothesis.given(st.integers(1, 40), st.integers(0, 40), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_growing_moves_keys_of_parents_only(count, more, hashes):
    array = np.array(hashes, np.int64)
    before, after = pages.page_of(array, count), pages.page_of(array, count + more)
    assert after.max() < count + more
    split = pages.parents(count, count + more)
    assert all(one == two or (one in split and two >= count) for one, two in zip(before, after, strict=True))


def test_the_server_counts_rows_segments_timers_and_bytes_of_state():
    plan, declared = state_plan(Machine, buckets=1)
    stream = Stream(plan, declared)
    stream.micro_batch([(1, 1, 1), (1, 5, 2), (2, 5, 3)])
    stream.micro_batch([], 5_000)

    def metric(name, **labels):
        return stream.transport.metrics.registry.get_sample_value(
            name, {"function": "machine", "version": "1", **labels}
        )

    assert metric("udf_bundle_rows_sum") == 3
    assert metric("udf_bundle_segments_sum") == 3
    assert metric("udf_emitted_rows_total") == 4
    assert metric("udf_calls_total") == 2
    assert metric("udf_timers_fired_total") == 1
    assert 0 < metric("udf_state_bytes_total", direction="in") < metric("udf_state_bytes_total", direction="out")
    stream.transport.close()
