"""Process table functions on the server: however a key is cut into segments, nothing changes; timers."""

import datetime as dt
import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import InvalidCall
from remote_udf.process_planning import plan_process_call
from udf_server import ArgumentTrait, ListView, MapView, StateHint, ValueView
from udf_server.process.base import row_class
from udf_server.process.declaration import declare_process
from udf_server.process.timers import Timers
from udf_server.testing import ProcessTableHarness, table

KEYED = Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]
ROWWISE = Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE]
names = st.sampled_from([None, "a", "b", "c"])
times = st.integers(0, 8)


@given(st.lists(st.tuples(names, times)), times)
def test_timers_fire_like_a_sorted_list_of_them(registered, watermark):
    """One per name, of which the last registration counts; one per time without a name."""
    timers, model = Timers(), {}
    for name, time in registered:
        timers.register(name, time)
        model[name if name is not None else time] = (time, name is not None, name or "")
    timers.begin()
    fired = []
    while (due := timers.next_due(watermark)) is not None:
        fired.append(due)
    timers.end()
    expected = sorted(each for each in model.values() if each[0] <= watermark)
    assert fired == [(name if is_named else None, time) for time, is_named, name in expected]
    assert len(timers.pending()) == len(model) - len(fired)


@given(st.lists(st.tuples(st.sampled_from(["set", "clear"]), st.sampled_from(["a", "b"]), times)))
def test_a_cleared_timer_is_gone(steps):
    timers, model = Timers(), {}
    for what, name, time in steps:
        if what == "set":
            timers.register(name, time)
            model[name] = time
        else:
            timers.clear(name)
            model.pop(name, None)
    assert dict(timers.pending()) == model
    assert bool(timers) == bool(model)


class Watching(udf.ProcessTableFunction):
    """Shows the watermark that fires a timer."""

    returns = "watermark timestamp, milliseconds bigint"

    def eval(self, ctx: udf.ProcessContext, rows: KEYED) -> None:
        ctx.register_on_time("t", 1_000)

    def on_timer(self, ctx: udf.ProcessContext) -> Iterator[tuple[dt.datetime, int]]:
        yield ctx.time_context().current_watermark(), ctx.time_context(int).current_watermark()


def test_the_end_of_time_is_the_last_datetime():
    harness = ProcessTableHarness(Watching, {"rows": table("k int", partition_by="k")}, also_batch=False)
    harness.row("rows", (1,))
    harness.watermark(2_000)
    harness.row("rows", (1,))
    harness.end_of_input()
    assert harness.take() == [
        (1, dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC), 2_000),
        (1, dt.datetime.max.replace(tzinfo=dt.UTC), 2**63 - 1),
    ]  # fmt: skip


@dataclass
class Memory:
    """Of all kinds of value."""

    rows: int = 0
    seen: list[int] = field(default_factory=list)


class Everything(udf.ProcessTableFunction):
    """Uses state of every kind."""

    returns = "said string"

    def eval(
        self,
        ctx: udf.ProcessContext,
        memory: Annotated[Memory, StateHint()],
        last: ValueView[int],
        items: ListView[int],
        counts: MapView[int, int],
        rows: KEYED,
    ) -> Iterator[tuple[str]]:
        memory.rows += 1
        memory.seen.append(rows.v)
        items.append(rows.v)
        counts[rows.v] = counts.get(rows.v, 0) + 1
        yield (f"{memory.rows} {memory.seen} {last.value} {list(items)} {sorted(counts.items())}",)
        last.value = rows.v
        if rows.v == 0:
            ctx.clear_state("items")
        elif rows.v == 1:
            ctx.clear_all_state()


class Model:
    """The same in plain Python."""

    def __init__(self):
        self.forget()

    def forget(self):
        self.rows, self.seen, self.last, self.items, self.counts = 0, [], None, [], {}

    def row(self, v):
        self.rows += 1
        self.seen.append(v)
        self.items.append(v)
        self.counts[v] = self.counts.get(v, 0) + 1
        said = f"{self.rows} {self.seen} {self.last} {self.items} {sorted(self.counts.items())}"
        self.last = v
        if v == 0:
            self.items = []
        elif v == 1:
            self.forget()
        return said


@pytest.mark.slow
@given(st.lists(st.integers(0, 4), max_size=12), st.integers(0, 12))
def test_state_of_every_kind_survives_the_wire_and_a_restore(values, cut):
    harness, model = ProcessTableHarness(Everything, {"rows": table("k int, v int", partition_by="k")}), Model()
    expected = []
    for number, value in enumerate(values):
        if number == cut:
            harness.restore(harness.snapshot())
        harness.row("rows", (1, value))
        expected.append((1, model.row(value)))
    assert harness.take() == expected


@dataclass
class Inner:
    """A part of it."""

    a: Annotated[int, "int"]
    b: bytes


@dataclass
class Note:
    """A row that an author may reuse."""

    numbers: list[int]
    inner: Inner


@pytest.mark.parametrize("kind", ["list", "tuple", "dict", "record", "row", "view"])
@pytest.mark.parametrize("how", ["collect", "yield"])
def test_what_is_emitted_has_the_values_of_that_moment(kind, how):
    class Reusing(udf.ProcessTableFunction):
        returns = Note if kind == "record" else "numbers array<bigint>, inner struct<a:int, b:binary>"

        def eval(
            self, ctx: udf.ProcessContext, seen: Annotated[udf.ListView[int], StateHint()], rows: KEYED
        ) -> Iterator[Any]:
            numbers, inner = [], Inner(0, bytearray(1)) if kind == "record" else {"a": 0, "b": bytearray(1)}
            values = {"numbers": numbers, "inner": inner}
            made = {
                "list": [numbers, inner], "tuple": (numbers, inner), "dict": values, "row": udf.Row(numbers, inner),
                "view": (seen, inner), "record": Note(**values) if kind == "record" else None,
            }[kind]  # fmt: skip
            for number in range(3):
                numbers.append(number)
                seen.append(number)
                if kind == "record":
                    inner.a = inner.b[0] = number
                else:
                    inner["a"] = inner["b"][0] = number
                if how == "yield":
                    yield made
                else:
                    ctx.collect(made)
            numbers.clear()

    harness = ProcessTableHarness(Reusing, {"rows": table("k int", partition_by="k")})
    harness.row("rows", (1,))
    assert [tuple(row)[1:] for row in harness.take()] == [
        (list(range(n + 1)), {"a": n, "b": bytes([n])}) for n in range(3)
    ]


@pytest.mark.parametrize(
    ("view", "change", "left"),
    [
        (ListView([1]), lambda view: view.extend([2, None]), [1]),
        (ListView([1]), lambda view: view.__iadd__([2, None]), [1]),
        (ListView([1]), lambda view: view.__setitem__(slice(0, 1), [2, None]), [1]),
        (MapView({"a": 1}), lambda view: view.update({"b": 2, None: 3}), {"a": 1}),
        (MapView({"a": 1}), lambda view: view.update([("b", 2), (None, 3)]), {"a": 1}),
    ],
)
def test_a_view_takes_all_of_what_it_is_given_or_nothing(view, change, left):
    with pytest.raises(ValueError, match="don't support null"):
        change(view)
    assert (dict(view) if isinstance(view, MapView) else list(view)) == left
    assert len(view.written()) == len(view)


def test_a_view_takes_more_elements_and_entries():
    items, entries = ListView([1], [5]), MapView({"a": 1}, {"a": 5})
    items.extend(each for each in (2, 3))
    entries.update({"a": 2}, b=3)
    assert (list(items), items.written()) == ([1, 2, 3], [5, None, None])
    assert (dict(entries), entries.written()) == ({"a": 2, "b": 3}, {"a": None, "b": None})


def test_a_restore_begins_with_a_new_instance():
    class Counting(udf.ProcessTableFunction):
        returns = "calls int"

        def __init__(self) -> None:
            self.calls = 0

        def eval(self, rows: ROWWISE) -> Iterator[tuple]:
            self.calls += 1
            yield (self.calls,)

    harness = ProcessTableHarness(Counting, {"rows": table("k int")})
    snapshot = harness.snapshot()
    harness.row("rows", (1,))
    harness.restore(snapshot)
    harness.row("rows", (1,))
    assert harness.take() == [(1,), (1,)]


@pytest.mark.parametrize(("is_assigned", "left"), [(False, 0), (True, 2)])
def test_a_change_inside_a_value_of_a_view_does_not_extend_its_life(is_assigned, left):
    class Growing(udf.ProcessTableFunction):
        returns = "sizes array<int>"

        def eval(
            self,
            value: Annotated[ValueView[list[int]], StateHint(ttl="10 s")],
            entries: Annotated[MapView[str, list[int]], StateHint(ttl="10 s")],
            rows: KEYED,
        ) -> Iterator[tuple]:
            found = [value.value or [], entries.get("k") or []]
            yield ([len(each) for each in found],)
            for each in found:
                each.append(1)
            if is_assigned or not found[0][1:]:
                value.value, entries["k"] = found

    harness = ProcessTableHarness(Growing, {"rows": table("k string", partition_by="k")})
    for _ in range(3):
        harness.row("rows", ("a",))
        harness.advance_clock("6 s")
    assert harness.take() == [("a", [0, 0]), ("a", [1, 1]), ("a", [left, left])]


@pytest.mark.parametrize("upsert_key", [(), ("v",)])
def test_a_delete_with_only_its_key_has_no_other_values(upsert_key):
    class Seen(udf.ProcessTableFunction):
        returns = "v int, w int, mode string"

        def eval(
            self, ctx: udf.ProcessContext,
            rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.SUPPORT_UPDATES],
        ) -> Iterator[tuple]:  # fmt: skip
            yield rows.v, rows.w, str(ctx.table_semantics_for("rows").changelog_mode)

    kinds = ("+I", "-U", "+U", "-D") if upsert_key else ("+I", "+U", "-D")
    mode = udf.ChangelogMode.of(*kinds, key_only_deletes=True)
    given = replace(table("k int, v int, w int", partition_by="k", changelog_mode=mode), upsert_key=upsert_key)
    harness = ProcessTableHarness(Seen, {"rows": given})
    harness.row("rows", (1, 2, 3), "+U")
    harness.row("rows", (1, 2, 3), "-D")
    text = f"[INSERT, {'UPDATE_BEFORE, ' * bool(upsert_key)}UPDATE_AFTER, ~DELETE]"
    assert harness.take() == [(1, 2, 3, text), (1, 2 if upsert_key else None, None, text)]


@pytest.mark.parametrize(
    ("traits", "given", "message"),
    [
        (
            ["SET_SEMANTIC_TABLE", "REQUIRE_UPDATE_BEFORE"],
            {},
            "declares REQUIRE_UPDATE_BEFORE, but the changes are .*~",
        ),
        (["SET_SEMANTIC_TABLE", "REQUIRE_FULL_DELETE"], {}, "declares REQUIRE_FULL_DELETE"),
        (["ROW_SEMANTIC_TABLE"], {}, "only possible for SET_SEMANTIC_TABLE .* found no PARTITION BY"),
        (["SET_SEMANTIC_TABLE"], {"partition_by": ["k"], "upsert_key": ["v"]}, r"by the upsert key \(v\), found k"),
        (["SET_SEMANTIC_TABLE"], {"partition_by": ["k", "v"], "upsert_key": ["V", "k"]}, None),
    ],
)
def test_an_upsert_changelog_is_passed_as_its_table_requires(traits, given, message):
    optional = ["SUPPORT_UPDATES", *(["OPTIONAL_PARTITION_BY"] if "SET_SEMANTIC_TABLE" in traits else [])]
    rows = Annotated[udf.Row, *(ArgumentTrait[each] for each in (*traits, *optional))]

    class Taking(udf.ProcessTableFunction):
        returns = "v int"

        def eval(self, rows: rows) -> Iterator[tuple]:
            yield (rows.v,)

    mode = udf.ChangelogMode.of("+I", "+U", "-D", key_only_deletes=True)
    tables = {"rows": replace(table("k int, v int", changelog_mode=mode), **given)}
    if message is None:
        assert plan_process_call(declare_process(Taking).spec, tables, {}).tables[0].upsert_key == (1, 0)
        return
    with pytest.raises(InvalidCall, match=message):
        plan_process_call(declare_process(Taking).spec, tables, {})


@dataclass
class Point:
    """Wider than what is passed."""

    x: int
    y: float


@dataclass
class Path:
    """A typed row with structs at every depth."""

    key: int
    point: Point
    points: list[Point]
    named: dict[str, Point]


def test_columns_of_typed_rows_go_by_position_and_widen_at_every_depth():
    class Sums(udf.ProcessTableFunction):
        returns = "sum double"

        def eval(self, rows: Annotated[Path, ArgumentTrait.ROW_SEMANTIC_TABLE]) -> Iterator[tuple]:
            yield (sum(each.x + each.y for each in [rows.point, *rows.points, *rows.named.values()]),)

    spec = declare_process(Sums).spec
    narrow = "struct<a:smallint,b:float>"
    found = table(f"id smallint, p {narrow}, ps array<{narrow}>, named map<string,{narrow}>")
    (given,) = plan_process_call(spec, {"rows": found}, {}).tables
    assert given.schema.types == [field.type for field in spec.process.tables[0].row]
    with pytest.raises(InvalidCall, match="wants rows of"):
        plan_process_call(spec, {"rows": table(f"id int, p struct<a:int>, ps array<{narrow}>, named int")}, {})


def test_tables_of_any_names_leave_few_classes_behind():
    made = [weakref.ref(row_class(tuple(f"{table}_{column}" for column in range(400)))) for table in range(100)]
    gc.collect()
    assert sum(reference() is not None for reference in made) <= 16
    assert row_class(("a", "b")) is row_class(("a", "b"))


class Ids(udf.ProcessTableFunction):
    returns = "id bigint"

    def eval(self, r: KEYED) -> Iterator[Any]:
        yield (r.id,)


def test_the_harness_releases_rows_in_the_order_of_spark():
    rows = [(0, [2.0]), (1, [float("nan")]), (2, None), (3, [None]), (4, [float("nan"), 1.0])]
    for order, expected in (("", [2, 3, 0, 1, 4]), (" DESC", [4, 1, 0, 3, 2]), (" DESC NULLS FIRST", [2, 4, 1, 0, 3])):
        columns = "k int, id bigint, ts timestamp, w array<double>"
        given_table = table(columns, partition_by="k", order_by=["ts", f"w{order}"])
        harness = ProcessTableHarness(Ids, {"r": given_table})
        for number, w in rows:
            harness.row("r", (1, number, dt.datetime(2026, 1, 1, tzinfo=dt.UTC), w))
        harness.watermark(dt.datetime(2026, 1, 2, tzinfo=dt.UTC))
        assert [row[-1] for row in harness.take()] == expected


def test_the_harness_takes_a_row_without_a_time_for_the_earliest():
    given_table = table("k int, id bigint, ts timestamp", partition_by="k", order_by="ts")
    harness = ProcessTableHarness(Ids, {"r": given_table})
    for number, year in ((0, 1950), (1, None), (2, 1960)):
        harness.row("r", (1, number, year and dt.datetime(year, 1, 1, tzinfo=dt.UTC)))
    harness.watermark(dt.datetime(1955, 1, 1, tzinfo=dt.UTC))
    assert [row[-1] for row in harness.take()] == [1, 0]
    harness.row("r", (1, 3, None))  # late
    harness.watermark(dt.datetime(1961, 1, 1, tzinfo=dt.UTC))
    assert [row[-1] for row in harness.take()] == [2]


class Opened(udf.ProcessTableFunction):
    """Emits what `open` has left, and how many rows the key has had."""

    returns = "opened int, rows int"
    opened = closed = 0

    async def open(self, context: udf.FunctionContext, store: udf.KeyValueStore) -> None:
        assert context.function == "opened" and await store.get(["x"]) == [None]
        self.opened += 1

    def close(self) -> None:
        type(self).closed += 1

    def eval(self, rows: ValueView[int], input: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]):
        rows.value = (rows.value or 0) + 1
        yield self.opened, rows.value


def test_the_harness_opens_the_function_and_closes_it():
    Opened.closed = 0
    with ProcessTableHarness(Opened, {"input": table("k int", partition_by="k")}) as harness:
        harness.row("input", (1,))
        harness.restore(harness.snapshot())
        assert Opened.closed == 1
        harness.row("input", (1,))
    assert harness.take() == [(1, 1, 1), (1, 1, 2)]
    assert Opened.closed == 2


def test_the_harness_takes_all_nan_for_one_key():
    nan = float("nan")
    harness = ProcessTableHarness(Opened, {"input": table("k double, j int", partition_by=["k", "j"])})
    harness.row("input", (nan, 1))
    harness.row("input", (-nan, 1))
    assert [row.rows for row in harness.take()] == [1, 2]
    assert harness.state("rows", (float("nan"), 1)).value == 2
    assert len(harness.state_keys("rows")) == 1


@pytest.mark.parametrize("values", [(1,), (1, 2, 3), {"k": 1}, {"k": 1, "x": 2}])
def test_the_harness_names_the_columns_of_a_row_that_has_others(values):
    harness = ProcessTableHarness(Opened, {"input": table("k int, j int", partition_by="k")})
    with pytest.raises(InvalidCall, match="'input': a row has the columns k, j, got "):
        harness.row("input", values)


class Ticking(udf.ProcessTableFunction):
    """A timer that sets itself again, as often as the row says."""

    returns = "left int"

    def eval(self, ctx: udf.ProcessContext, left: udf.ValueView[int], r: KEYED) -> Iterator[Any]:
        left.value = r.v
        ctx.time_context(int).register_on_time("tick", 1)
        yield from ()

    def on_timer(self, ctx: udf.ProcessContext, left: udf.ValueView[int]) -> Iterator[Any]:
        left.value -= 1
        if left.value:
            ctx.time_context(int).register_on_time("tick", ctx.time_context(int).time() + 1)
        else:
            yield (0,)


def test_the_harness_stops_a_timer_that_always_sets_itself_again():
    given = {"r": table("k int, v int", partition_by="k")}
    with ProcessTableHarness(Ticking, given, most_timers=50, also_batch=False) as harness:
        harness.row("r", (1, 50))
        harness.row("r", (2, 3))
        harness.watermark(1_000)
        assert harness.take() == [(2, 0), (1, 0)]
        harness.row("r", (3, 51))
        with pytest.raises(RuntimeError, match=r"ticking@1: 50 timers of the key \(3,\) fired .* 'tick' at 51:"):
            harness.end_of_input()


def test_the_harness_says_why_a_table_has_no_changes():
    for function, todo in ((Ticking, "it does not declare SUPPORT_UPDATES"), (Changing, "pass its changelog_mode")):
        harness = ProcessTableHarness(function, {"r": table("k int, v int", partition_by="k")})
        with harness, pytest.raises(InvalidCall, match=rf"'r': a row is \+U, but its .* \[INSERT\]; {todo}"):
            harness.row("r", (1, 1), "+U")


class Changing(udf.ProcessTableFunction):
    """Counts in a state row, by name, by position and by attribute."""

    returns = "what string"

    def eval(
        self,
        m: Annotated[udf.Row, StateHint(type="count bigint, `other` string")],
        r: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.SUPPORT_UPDATES],
    ) -> Iterator[Any]:
        m["count"] = (m["count"] or 0) + 1
        m[1] = f"{m[1] or ''}x"
        yield (f"{m.count} {m[0]} {m['other']}",)
        try:
            m["absent"]
        except KeyError as error:
            yield (error.args[0],)


def test_a_row_in_the_state_is_read_and_changed_as_rows_of_tables_are_read():
    with ProcessTableHarness(Changing, {"r": table("k int, v int", partition_by="k")}) as harness:
        harness.row("r", (1, 1))
        harness.row("r", (1, 1))
        told = "no field 'absent', there are count, other"
        assert [row.what for row in harness.take()] == ["1 1 x", told, "2 2 xx", told]


def test_two_columns_for_one_time_are_named():
    given = table("k int, a timestamp, b timestamp", partition_by="k")
    with pytest.raises(InvalidCall, match=r"found ambiguous columns a, b for table argument 'r'"):
        ProcessTableHarness(Ticking, {"r": given}, on_time=["a", "b"])


class Meeting(udf.ProcessTableFunction):
    returns = "seen string"

    def eval(self, ctx: udf.ProcessContext, left: KEYED, right: KEYED) -> Iterator[tuple[str]]:
        columns = [each.time_column for each in (ctx.table_semantics_for("left"), ctx.table_semantics_for("right"))]
        yield (f"{columns} {ctx.time_context(int).time()}",)


def test_each_table_has_its_own_time_column():
    given = {
        "left": table("k int, ts timestamp", partition_by="k"),
        "right": table("at timestamp, k int", partition_by="k"),
    }
    with ProcessTableHarness(Meeting, given, on_time=["at", "ts"]) as harness:
        harness.row("left", (1, dt.datetime.fromtimestamp(5, dt.UTC)))
        harness.row("right", (dt.datetime.fromtimestamp(7, dt.UTC), 1))
        assert [row.seen for row in harness.take()] == ["[1, 0] 5000", "[1, 0] 7000"]
    with pytest.raises(InvalidCall, match="found no column for table argument 'right'"):
        ProcessTableHarness(Meeting, given, on_time="ts")


@dataclass
class Visit:
    """Its integer is wider than the column that is passed."""

    name: str
    age: int


def test_a_key_that_a_typed_row_widens_is_widened_in_other_tables():
    class Both(udf.ProcessTableFunction):
        returns = "seen int"

        def eval(
            self, seen: ValueView[int], visits: Annotated[Visit, ArgumentTrait.SET_SEMANTIC_TABLE], rows: KEYED
        ) -> Iterator[tuple]:
            seen.value = (seen.value or 0) + 1
            yield (seen.value,)

    def given(*ages):
        names = ("visits", "rows")
        return {
            name: table(f"name string, age {age}", partition_by="age") for name, age in zip(names, ages, strict=True)
        }

    for ages in (("int", "int"), ("int", "bigint")):
        harness = ProcessTableHarness(Both, given(*ages))
        for name in ("visits", "rows"):
            harness.row(name, ("Ann", 25))
        assert harness.take() == [(25, 25, 1), (25, 25, 2)]
        assert {str(field.type) for field in harness.columns if field.name != "seen"} == {"int64"}
    for ages in (("int", "smallint"), ("int", "string")):
        with pytest.raises(InvalidCall, match=rf"Given partition key sets: \[bigint\], \[{ages[1]}\]"):
            ProcessTableHarness(Both, given(*ages))
