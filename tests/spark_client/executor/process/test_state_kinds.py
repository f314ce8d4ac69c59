"""State of every kind on streams, with and without a time-to-live, against a model with plain objects."""

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import Annotated, Any

import hypothesis
import pytest
from hypothesis import strategies as st

import udf_server as udf
from tests.properties import examples
from tests.spark_client.executor.process.stateful import Stream, state_plan
from udf_server import ArgumentTrait, ListView, MapView, StateHint

TTL = 5_000


@dataclasses.dataclass
class Note:
    at: float = 0.0
    seen: list[int] = dataclasses.field(default_factory=list)


class Kinds(udf.ProcessTableFunction):
    """The value of a row is a step: what it does, and with which number."""

    returns = "shown string"

    def eval(
        self, ctx: udf.ProcessContext, note: Annotated[Note, StateHint()],
        timed_note: Annotated[Note, StateHint(ttl="5 s")], items: ListView[float],
        timed_items: Annotated[ListView[float], StateHint(ttl="5 s")], entries: MapView[float, int],
        timed_entries: Annotated[MapView[float, int], StateHint(ttl="5 s")],
        r: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE],
    ) -> Iterator[tuple[str]]:  # fmt: skip
        what, number = STEPS[r.v // 10], r.v % 10
        for record, elements, keyed in ((note, items, entries), (timed_note, timed_items, timed_entries)):
            match what:
                case "see":
                    record.seen.append(number)
                case "at":
                    record.at += number + 1
                case "push":
                    elements.append(of(number))
                case "pop" if elements:
                    elements.pop(0)
                case "put":
                    keyed[of(number)] = number
                case "drop":
                    keyed.pop(of(number), None)
                case "clear note":
                    ctx.clear_state("note")
                    ctx.clear_state("timed_note")
                case "clear":
                    ctx.clear_all_state()
        yield (" | ".join(map(repr, (note, timed_note, items, timed_items, shown(entries), shown(timed_entries)))),)


STEPS = ("see", "at", "push", "pop", "put", "drop", "clear note", "clear", "read")


def of(number: int) -> float:
    """Returns a number as a new object, and NaN for those above 5."""
    return float("nan") if number > 5 else number / 2


def shown(entries: Any) -> str:
    return str(sorted(map(str, entries.items())))


class Model:
    """A key: its entries with the time at which each was written, for a life of `ttl`."""

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.note, self.written = Note(), 0
        self.items: list[tuple[float, int]] = []
        self.entries: dict[str, tuple[float, int, int]] = {}

    def expire(self, now: int) -> None:
        if now - self.written >= self.ttl:
            self.note = Note()
        self.items = [each for each in self.items if now - each[1] < self.ttl]
        self.entries = {key: each for key, each in self.entries.items() if now - each[2] < self.ttl}

    def step(self, what: str, number: int, now: int) -> None:
        if what in ("see", "at"):
            self.written = now
        match what:
            case "see":
                self.note.seen.append(number)
            case "at":
                self.note.at += number + 1
            case "push":
                self.items.append((of(number), now))
            case "pop":
                self.items = self.items[1:]
            case "put":
                self.entries[str(of(number))] = (of(number), number, now)
            case "drop":
                self.entries.pop(str(of(number)), None)

    def clear(self, what: str) -> None:
        if what.startswith("clear"):
            self.note = Note()
        if what == "clear":
            self.items, self.entries = [], {}


def shown_models(kept: Model, timed: Model) -> str:
    shows = [repr(kept.note), repr(timed.note)]
    shows += [f"ListView({[value for value, _ in each.items]!r})" for each in (kept, timed)]
    shows += [repr(shown({key: n for key, n, _ in each.entries.values()})) for each in (kept, timed)]
    return " | ".join(shows)


BATCHES = st.lists(
    st.tuples(
        st.sampled_from([0, 1_000, 3_000, 5_000]),
        st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, len(STEPS) - 1), st.integers(0, 7)), min_size=1, max_size=6
        ),
    ),
    min_size=1, max_size=6,
)  # fmt: skip
"""By how many milliseconds the clock advances, and then rows: key, step and number."""


@pytest.mark.slow
@hypothesis.given(batches=BATCHES)
@hypothesis.example(batches=[(0, [(0, 6, 0), (0, 0, 1)]), (0, [(0, 8, 0)])])
@hypothesis.example(batches=[(0, [(0, 4, 6)]), (0, [(0, 4, 7)]), (0, [(0, 5, 6)])])
@examples(60)
def test_state_of_every_kind_is_what_plain_objects_are(batches):
    plan, declared = state_plan(Kinds, buckets=2)
    stream, now = Stream(plan, declared), 1_000_000
    keys: dict[int, tuple[Model, Model]] = collections.defaultdict(lambda: (Model(math.inf), Model(TTL)))
    with stream.transport:
        for later, rows in batches:
            now += later
            expected = collections.defaultdict(list)
            for models in keys.values():
                for model in models:
                    model.expire(now)
            for key, step, number in rows:
                for model in keys[key]:
                    model.step(STEPS[step], number, now)
                expected[key].append(shown_models(*keys[key]))
                for model in keys[key]:
                    model.clear(STEPS[step])
            found = collections.defaultdict(list)
            for row in stream.micro_batch([(key, step * 10 + number, 1) for key, step, number in rows], 1_000, now):
                found[row[0]].append(row[1])
            assert found == expected
