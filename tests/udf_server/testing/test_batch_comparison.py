"""The harness of process table functions compares its steps with a batch query over the same rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from udf_server import ArgumentTrait, StateHint
from udf_server.testing import ProcessTableHarness, table

EVENTS = Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]


@dataclass
class Seen:
    """The rows since the last silence."""

    rows: int = 0
    last: datetime | None = None


class Careless(udf.ProcessTableFunction):
    """Counts rows until a timer ends their session."""

    returns = "rows int"

    def eval(self, ctx: udf.ProcessContext, seen: Annotated[Seen, StateHint()], events: EVENTS) -> Iterator[tuple[int]]:
        seen.rows, seen.last = seen.rows + 1, ctx.time
        ctx.register_on_time("end", ctx.time + timedelta(seconds=10))
        yield from ()

    def on_timer(self, ctx: udf.ProcessContext, seen: Seen) -> Iterator[tuple[int]]:
        yield (seen.rows,)
        ctx.clear_all()


class Careful(Careless):
    """Ends a session at the row after it, too."""

    def eval(self, ctx: udf.ProcessContext, seen: Annotated[Seen, StateHint()], events: EVENTS) -> Iterator[tuple[int]]:
        if seen.last is not None and ctx.time >= seen.last + timedelta(seconds=10):
            yield (seen.rows,)
            seen.rows = 0
        yield from super().eval(ctx, seen, events)


def harness(function: type[udf.ProcessTableFunction] = Careless, **arguments: bool) -> ProcessTableHarness:
    events = table("user string, ts timestamp", partition_by="user")
    return ProcessTableHarness(function, {"events": events}, on_time="ts", **arguments)


def at(second: int) -> datetime:
    return datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(seconds=second)


def two_sessions(each: ProcessTableHarness) -> None:
    for second in (0, 4, 30):
        each.watermark(at(second))
        each.row("events", ("Bob", at(second)))


@pytest.mark.parametrize("read", [ProcessTableHarness.take, ProcessTableHarness.end_of_input])
def test_a_timer_that_clears_before_the_next_row_fails_in_batch(read: Callable[[ProcessTableHarness], object]):
    made = harness()
    two_sessions(made)
    with pytest.raises(AssertionError) as failed:
        read(made)
    lines = str(failed.value).splitlines()
    assert "careless@1: key ('Bob',)" in lines[0]
    ended = ["  +I[Bob, 1]"] if read is ProcessTableHarness.end_of_input else []
    assert lines[1:-1] == ["as a stream:", "  +I[Bob, 2]", *ended, "in batch:", "  +I[Bob, 3]"]


def failing() -> None:
    with harness() as made:
        two_sessions(made)
        raise ValueError("of the test")


def test_the_end_of_a_with_block_compares_and_keeps_the_error_of_the_block():
    with pytest.raises(AssertionError, match="careless@1"), harness() as made:
        two_sessions(made)
    with pytest.raises(ValueError, match="of the test"):
        failing()


def test_a_function_that_is_for_streams_only_is_not_compared():
    made = harness(also_batch=False)
    two_sessions(made)
    made.end_of_input()
    assert [row.rows for row in made.take()] == [2, 1]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 15), st.booleans()), max_size=12))
def test_a_function_that_compares_times_is_the_same_in_both(steps: list[tuple[str, int, bool]]):
    second, sessions, last = 0, 0, dict[str, int]()
    with harness(Careful) as made:
        for user, later, watermark in steps:
            second += later
            if watermark:
                made.watermark(at(second))
            made.row("events", (user, at(second)))
            sessions += user not in last or second >= last[user] + 10
            last[user] = second
        made.end_of_input()
        assert len(made.take()) == sessions


OTHERWISE: list[Callable[[ProcessTableHarness], None]] = [
    lambda each: each.row("events", ("Eve", at(29))),
    lambda each: each.advance_clock("1 s"),
    lambda each: each.set_state("seen", Seen(), "Eve"),
    lambda each: each.clear_state("seen", "Eve"),
]


@pytest.mark.parametrize("step", OTHERWISE)
def test_steps_that_no_batch_query_has_are_not_compared(step: Callable[[ProcessTableHarness], None]):
    made = harness()
    two_sessions(made)
    step(made)
    made.end_of_input()
    assert [row.rows for row in made.take() if row.user == "Bob"] == [2, 1]


def test_going_back_forgets_the_rows_after_the_snapshot():
    made = harness()
    made.row("events", ("Bob", at(0)))
    made.watermark(at(1))
    before = made.snapshot()
    made.watermark(at(10))
    made.row("events", ("Bob", at(11)))
    made.restore(before)
    made.row("events", ("Bob", at(5)))
    made.end_of_input()
    assert [row.rows for row in made.take()] == [1, 2]


class Bounded(udf.ProcessTableFunction):
    """Ends sessions of more rows than the latest limit; a timer forgets them."""

    returns = "rows int"

    def eval(
        self,
        ctx: udf.ProcessContext,
        limit: Annotated[udf.ValueView[int], StateHint(broadcast=True)],
        count: udf.ValueView[int],
        limits: Annotated[udf.Row, ArgumentTrait.BROADCAST_SEMANTIC_TABLE],
        events: EVENTS,
    ) -> Iterator[tuple[int]]:
        if limits is not None:
            limit.value = limits.most
            return
        count.value = (count.value or 0) + 1
        ctx.register_on_time("end", ctx.time_context(int).table_watermark() or 0)
        if count.value > limit.value:
            yield (count.value,)

    def on_timer(
        self, ctx: udf.ProcessContext, limit: udf.ValueView[int], count: udf.ValueView[int]
    ) -> Iterator[tuple[int]]:
        ctx.clear_all()
        yield from ()


@pytest.mark.parametrize("later", [True, False])
def test_broadcast_rows_are_compared_if_they_came_first(later: bool):
    made = ProcessTableHarness(Bounded, {"limits": "most int", "events": table("k int", partition_by="k")})
    made.row("limits", (1,))
    made.row("events", (7,))
    made.watermark(1_000)
    made.row("events", (7,))
    if later:
        made.row("limits", (5,))
        made.end_of_input()
        assert made.take() == []
        return
    with pytest.raises(AssertionError, match=r"as a stream: no rows\nin batch:\n  \+I\[7, 2\]"):
        made.end_of_input()
