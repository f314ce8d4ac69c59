"""What the process table functions of the cases do, by name: a body and what happens on a timer.

A body gets the context, its state entries by name and its arguments by name, and yields rows.
"""

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql.types import VariantVal

import udf_server as udf

__all__ = ["BODIES", "MODES", "TIMERS"]

Body = Callable[[udf.ProcessContext, dict[str, Any], dict[str, Any]], Iterator[Any]]
Timer = Callable[[udf.ProcessContext, dict[str, Any]], Iterator[Any]]
MAX = 2**63 - 1
_RETRACT = udf.ChangelogMode.of("+I", "-U", "+U", "-D")
MODES = {
    "UpdatingRetractFunction": _RETRACT,
    "UpdatingRetractRowSemanticFunction": _RETRACT,
    "CustomAggregation": _RETRACT,
    "f (echo)": _RETRACT,
    "UpdatingUpsertFunction": udf.ChangelogMode.of("+I", "+U", "-D"),
    "InvalidUpdatingSemanticsFunction": udf.ChangelogMode.of("+I", "+U", "-D"),
    "UpsertSetSemanticPTF": udf.ChangelogMode.of("+I", "+U", "-D", key_only_deletes=True),
}


def text(value: Any) -> str:
    """As the cases print it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, udf.Row):
        return f"{value.kind}[{', '.join(map(text, value))}]"
    if isinstance(value, datetime.timedelta):
        return f"PT{value.total_seconds():g}S"
    if isinstance(value, datetime.datetime):
        plain = value.replace(tzinfo=None)
        digits = "milliseconds" if plain.microsecond else "seconds" if value.tzinfo or plain.second else "minutes"
        return plain.isoformat(timespec=digits) + ("Z" if value.tzinfo else "")
    if isinstance(value, VariantVal):
        return json.dumps(value.toPython(), separators=(",", ":"))
    if isinstance(value, (udf.ListView, list)):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, (udf.MapView, Mapping)):
        return f"{{{', '.join(f'{text(key)}={text(item)}' for key, item in value.items())}}}"
    return str(value)


def emitted(*values: Any) -> tuple[str]:
    return (f"{{{', '.join(map(text, values))}}}",)


def descriptor(names: list[str] | None) -> str:
    return "null" if names is None else f"({', '.join(f'`{name}`' for name in names)})"


def entries(view: Any, between: str = ", ") -> str:
    return "{" + between.join(sorted(f"{text(key)}={text(value)}" for key, value in view.items())) + "}"


def echo(*names: str) -> Body:
    """Emits these arguments."""

    def body(ctx: udf.ProcessContext, s: dict[str, Any], a: dict[str, Any]) -> Iterator[Any]:
        yield emitted(*(a[name] for name in names))

    return body


class Times:
    """The texts of the cases about time, and what they do."""

    def __init__(self, ctx: udf.ProcessContext) -> None:
        self.ctx = ctx
        self.time = ctx.time_context(int)
        self.at = f"at time {text(self.time.time())} watermark {text(self.time.current_watermark())}"

    def eval(self, row: Any) -> tuple[str]:
        return emitted(f"Processing input row {text(row)} {self.at}")

    def fired(self) -> tuple[str]:
        return emitted(f"Timer {text(self.ctx.current_timer)} fired {self.at}")

    def register(self, *timer: Any) -> tuple[str]:
        name = f" {timer[0]}" if len(timer) > 1 else ""
        self.time.register_on_time(*timer)
        return emitted(f"Registering timer{name} for {timer[-1]} {self.at}")

    def clear(self, timer: Any) -> tuple[str]:
        self.time.clear_timer(timer)
        return emitted(f"Clearing timer {timer} {self.at}")

    def clear_all(self) -> tuple[str]:
        self.time.clear_all_timers()
        return emitted(f"Clearing all timers {self.at}")


def _context(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    semantics = ctx.table_semantics_for("r")
    columns = ", ".join(
        f"`{field.name}` {'STRING' if str(field.type) == 'string' else 'INT'}{'' if field.nullable else ' NOT NULL'}"
        for field in semantics.data_type
    )
    partition = list(semantics.partition_by_columns)
    yield emitted(a["r"], a["s"], partition, str(semantics.changelog_mode), f"ROW<{columns}>")


def _pojo(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    state, row = s["s"], a["r"]
    yield emitted(state, row)
    if row.name == "Bob":
        state.s = row.name
    state.i = 0 if state.i is None else state.i + 1


def _pojo_default(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    state, row = s["s"], a["r"]
    yield emitted(state, row)
    if row.name == "Bob":
        state.s = row.name
    state.i = 0 if state.i == 99 else state.i + 1


def _multi_state(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    first, second = s["s1"], s["s2"]
    yield emitted(first, second, a["r"])
    count = first.i or 0
    first.i, second.s = count + 1, str(count)


def _clear_state(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield emitted(s["s"], a["r"])
    if a["r"].name == "Bob" and s["s"].i == 100:
        ctx.clear_state("s")
    else:
        s["s"].i += 1


def _descriptor(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield emitted(*(descriptor(a[f"columnList{number}"]) for number in (1, 2, 3)))


def _map_state(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    view, row = s["s"], a["r"]
    yield emitted(entries(view), "KeyedStateMapViewWithKeysNotNull", row)
    count = view.get(row.name) or 1
    view["old" + row.name] = count
    view[row.name] = count + 1
    for put in (lambda: view.__setitem__(None, 42), lambda: view.update({None: 42})):
        try:
            put()
        except ValueError as error:
            assert "Map views don't support null keys." in str(error)
        else:
            raise AssertionError("a null key was taken")
    view["nullValue"] = None
    if count == 2:
        ctx.clear_state("s")


def _conversions(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    shown = []
    numbers, moments = ctx.time_context(int), ctx.time_context(datetime.datetime)
    for which in ("time", "current_watermark"):
        moment = getattr(moments, which)()
        local = moment.replace(tzinfo=None) if moment is not None else None
        number = getattr(numbers, which)()
        shown.append(f"(Long: {text(number)}, Instant: {text(moment)}, LocalDateTime: {text(local)})")
    yield emitted(f"Time {shown[0]}, Watermark {shown[1]}")


def _named_timers(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    times = Times(ctx)
    yield times.eval(a["r"])
    now = times.time.time()
    if now == 0:
        for name, time in (("timeout1", 1), ("timeout2", 2), ("timeout3", 3), ("timeout4", MAX), ("timeout5", MAX)):
            yield times.register(name, time)


def _named_timers_fired(ctx: Any, s: Any) -> Iterator[Any]:
    times = Times(ctx)
    assert times.time.table_watermark() is None
    yield times.fired()
    if ctx.current_timer == "timeout1":
        yield times.register("timeout2", times.time.time() + 4)
        yield times.clear("timeout3")
    elif ctx.current_timer == "timeout2":
        yield times.clear_all()


def _unnamed_timers(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    times = Times(ctx)
    yield times.eval(a["r"])
    if times.time.time() == 0:
        for time in (1, 2, MAX):
            yield times.register(time)


def _unnamed_timers_fired(ctx: Any, s: Any) -> Iterator[Any]:
    times = Times(ctx)
    yield times.fired()
    now = times.time.time()
    if now == 1:
        yield times.register(now + 4)
        yield times.clear(2)
    elif now == 5:
        yield times.clear_all()


def _late_timers(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    times = Times(ctx)
    yield times.eval(a["r"])
    if a["r"].name == "Bob":
        yield times.register("bob", 0)
        yield times.register(0)
    else:
        yield times.register("alice", 1)


def _late_timers_fired(ctx: Any, s: Any) -> Iterator[Any]:
    times = Times(ctx)
    yield times.fired()
    if ctx.current_timer == "alice":
        yield times.register("alice-again", 0)


def _pojo_time(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    state, times = s["s"], Times(ctx)
    yield emitted(state, a["r"])
    if state.i is None:
        state.i = 1
        yield times.register("t", times.time.time() + 2)
    else:
        state.i += 1


def _pojo_time_fired(ctx: Any, s: Any) -> Iterator[Any]:
    yield Times(ctx).fired()
    s["s"].i *= 10


def _chained(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    times = Times(ctx)
    yield times.eval(a["r"])
    yield times.register("t", times.time.time() + 1)


def _chained_fired(ctx: Any, s: Any) -> Iterator[Any]:
    times = Times(ctx)
    yield times.fired()
    yield emitted(times.time.time())


def _receiving(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield Times(ctx).eval(a["r"])


def _register_42(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if "rule" not in a or a["rule"] is not None:
        ctx.register_on_time(42)
    yield from ()


def _lookup(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a.get("rules") is not None:
        s["weights"][a["rules"].name] = a["rules"].weight
        ctx.clear_state("count")
        return
    count = (s["count"].value or 0) + 1
    s["count"].value = count
    yield emitted(a["input"], count, s["weights"].get(a["input"].name), "KeyedStateMapViewWithKeysNotNull")
    ctx.register_on_time("end", MAX)


def _lookup_fired(ctx: Any, s: Any) -> Iterator[Any]:
    yield emitted(s["count"].value, entries(s["weights"]))


def _multi_broadcast(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["rules1"] is not None:
        s["weights"][a["rules1"].name] = a["rules1"].weight
        return
    if a["rules2"] is not None:
        s["stats"].rules += 1
        s["stats"].lastName = a["rules2"].name
        return
    row = a["in1"] if a["in1"] is not None else a["in2"]
    yield emitted(a["in1"], a["in2"], s["weights"].get(row.name))
    s["stats"].lastName = "discarded"
    ctx.register_on_time("end", MAX)


def _multi_broadcast_fired(ctx: Any, s: Any) -> Iterator[Any]:
    yield emitted(entries(s["weights"]), s["stats"])


def _broadcast_clear(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["rule"] is not None:
        s["weights"][a["rule"].name] = a["rule"].weight
        if a["rule"].name == "Dave":
            ctx.clear_all_state()
        return
    s["count"].value = (s["count"].value or 0) + 1
    ctx.register_on_time("end", MAX)
    yield from ()


def _broadcast_write(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["rule"] is None:
        s["weights"][a["input"].name] = 42
    yield from ()


def _timed_join(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    score, city = s["score"], s["city"]
    if a["scoreTable"] is not None:
        score.f0 = a["scoreTable"].score
        ctx.register_on_time("timeout", ctx.time + datetime.timedelta(seconds=1))
    if a["cityTable"] is not None:
        city.f0 = a["cityTable"].city
    if score.f0 is not None and city.f0 is not None:
        ctx.clear_all_timers()
        yield (f"{score.f0} score in city {city.f0}",)


def _timed_join_fired(ctx: Any, s: Any) -> Iterator[Any]:
    yield (f"no city found for score {s['score'].f0}",)
    s["score"].f0 = None


def _order_by(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    s["capturedOrder"].list.append(text(a["r"]))
    time = ctx.time_context(datetime.datetime)
    yield emitted(time.current_watermark(), time.table_watermark(), time.time(), s["capturedOrder"].list)


def _updating(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    kinds = {str(kind) for kind in ctx.changelog_mode.kinds}
    upsert = "upsert-partial-delete" if ctx.changelog_mode.key_only_deletes else "upsert-full-delete"
    mode = {frozenset(("+I", "-U", "+U", "-D")): "retract", frozenset(("+I", "+U", "-D")): upsert}[frozenset(kinds)]
    row = a["r"]
    yield udf.Row(row[0], row[1], mode, kind=row.kind)


def _filter(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["input"].value >= a["threshold"]:
        yield (a["input"].value,)


def _scalar_only(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    time = ctx.time_context()
    yield time.time(), time.current_watermark(), a["a"] + a["b"]


def _union(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    left, right = a["leftTable"], a["rightTable"]
    yield (f"LEFT: {text(left)}" if left is not None else f"RIGHT: {text(right)}",)


def _counting(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    s["state"].counter += 1
    yield (s["state"].counter,)


def _list_state(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    s["listState"].append(a["input"].value)
    yield (list(s["listState"]),)


def _map_counts(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    key = a["input"]["key"]
    s["mapState"][key] = s["mapState"].get(key, 0) + 1
    yield key, s["mapState"][key]


def _conditional(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["input"].value > 0:
        s["state"].counter += 1
    yield from ()


def _row_state(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    s["memory"].count = (s["memory"].count or 0) + 1
    yield (s["memory"].count,)


def _timer(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    ctx.register_on_time(f"timeout-{a['input'].name}", ctx.time + datetime.timedelta(seconds=5))
    yield (f"registered-{a['input'].name}",)


def _unnamed_timer(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    ctx.register_on_time(ctx.time + datetime.timedelta(seconds=5))
    yield ("registered",)


def _timer_state(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    s["state"].count += 1
    ctx.register_on_time("check", ctx.time + datetime.timedelta(seconds=5))
    yield from ()


def _cascading(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    ctx.register_on_time("first", ctx.time + datetime.timedelta(seconds=5))
    yield ("eval",)


def _cascading_fired(ctx: Any, s: Any) -> Iterator[Any]:
    yield (f"fired-{ctx.current_timer}",)
    if ctx.current_timer == "first":
        ctx.register_on_time("second", ctx.time - datetime.timedelta(seconds=2))


def _watermark_only(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    watermark = ctx.time_context(int).current_watermark()
    ctx.register_on_time("t", 1 if watermark is None or watermark < 0 else watermark + 1)
    yield ("registered",)


def _multi_timer(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["leftTable"] is not None:
        ctx.register_on_time("check", ctx.time + datetime.timedelta(seconds=5))
        yield ("left",)
    else:
        yield ("right",)


def _clearing(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    match a["input"].action:
        case "increment":
            s["state"].count += 1
            yield (f"count={s['state'].count}",)
        case "clear-state":
            ctx.clear_state("state")
            yield ("cleared",)
        case "clear-all-state":
            ctx.clear_all_state()
            yield ("cleared-all",)
        case "clear-all":
            ctx.clear_all()
            yield ("cleared-everything",)
        case "register-timer":
            ctx.register_on_time("t", ctx.time + datetime.timedelta(hours=1))
            yield ("timer-registered",)


def _semantics(ctx: Any) -> tuple[str, int, str]:
    semantics = ctx.table_semantics_for("input")
    return str(list(semantics.partition_by_columns)), semantics.time_column, str(ctx.changelog_mode)


def _introspection(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield _semantics(ctx)
    ctx.register_on_time("check", ctx.time + datetime.timedelta(seconds=5))


def _upsert(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    row = a["input"]
    yield udf.Row(row["key"], row["value"], kind="-D" if row["value"] is None else "+U")


def _modes(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield tuple(str(ctx.table_semantics_for(each).changelog_mode) for each in ("retracting", "plain"))


def _user(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield a["user"].name, a["user"].age + 1


def _greeting(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["purchase"] is not None:
        s["state"].lastItem = a["purchase"].item
    elif s["state"].lastItem is None:
        yield f"Hello {a['visit'].name}, let me know if I can help!"
    else:
        yield f"Hello {a['visit'].name}, here to buy {s['state'].lastItem} again?"


def _custom_aggregation(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    state, score = s["state"], a["input"].score
    if state.sum == -1:
        return
    if score < 0:
        yield udf.Row(state.sum, kind="-D")
        state.sum = -1
    elif not state.sum:
        state.sum = score
        yield udf.Row(state.sum)
    else:
        yield udf.Row(state.sum, kind="-U")
        state.sum += score
        yield udf.Row(state.sum, kind="+U")


def _ping(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    ctx.register_on_time("ping", ctx.time + datetime.timedelta(minutes=1))
    yield from ()


def _said(make: Callable[[Any, dict[str, Any]], Any]) -> Timer:
    """A timer that emits one row."""

    def timer(ctx: udf.ProcessContext, s: dict[str, Any]) -> Iterator[Any]:
        yield make(ctx, s)

    return timer


def _empty(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield ()


def _value(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield (a["input"].value,)


def _echoed(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    ((name, row),) = a.items()
    key = ctx.table_semantics_for(name).partition_by_columns
    yield udf.Row(*(value for index, value in enumerate(row) if index not in key), kind=row.kind)


def _only_text(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield emitted("empty")


BODIES: dict[str, Body] = {
    **dict.fromkeys(
        (
            "RowSemanticTableFunction",
            "SetSemanticTableFunction",
            "RowSemanticTablePassThroughFunction",
            "ScalarBeforeRowSemanticTablePassThroughFunction",
            "SetSemanticTablePassThroughFunction",
        ),
        echo("r", "i"),
    ),
    **dict.fromkeys(("TypedRowSemanticTableFunction", "TypedSetSemanticTableFunction"), echo("u", "i")),
    **dict.fromkeys(
        (
            "SetSemanticTableRetractArgFunction",
            "SetSemanticTableFullDeletesArgFunction",
            "RequiredTimeFunction",
            "VariantTableArgFunction",
        ),
        echo("r"),
    ),
    "EmptyArgFunction": _only_text,
    "IntervalDayArgFunction": echo("d"),
    "ScalarArgsFunction": echo("i", "b"),
    "VariantFunction": echo("variant1", "variant2", "variant3"),
    "f (echo)": _echoed,
    "UpdatingRetractFunction": _updating,
    "UpdatingRetractRowSemanticFunction": _updating,
    "UpdatingUpsertFunction": _updating,
    "InvalidUpdatingSemanticsFunction": _updating,
    **dict.fromkeys(("EmptyOutputRowSemanticFunction", "EmptyOutputFunction"), _empty),
    "ContextFunction": _context,
    "PojoStateFunction": _pojo,
    "PojoWithDefaultStateFunction": _pojo_default,
    "MultiStateFunction": _multi_state,
    "ClearStateFunction": _clear_state,
    "DescriptorFunction": _descriptor,
    "MapStateFunction": _map_state,
    "TimeConversionsFunction": _conversions,
    "NamedTimersFunction": _named_timers,
    "UnnamedTimersFunction": _unnamed_timers,
    "LateTimersFunction": _late_timers,
    "PojoStateTimeFunction": _pojo_time,
    "ChainedSendingFunction": _chained,
    "ChainedReceivingFunction": _receiving,
    "InvalidRowSemanticTableTimersFunction": _register_42,
    "InvalidBroadcastTimerFunction": _register_42,
    "BroadcastLookupFunction": _lookup,
    "BroadcastTimersFunction": _register_42,
    "MultiBroadcastFunction": _multi_broadcast,
    "BroadcastClearStateFunction": _broadcast_clear,
    "InvalidBroadcastStateWriteFunction": _broadcast_write,
    "MultiInputWithScalarArgsFunction": echo("in1", "in2", "m", "i", "r"),
    "MultiInputFunction": echo("in1", "in2"),
    "TimedJoinFunction": _timed_join,
    "OrderByFunction": _order_by,
    "FilterPTF": _filter,
    "ScalarOnlyContextPTF": _scalar_only,
    "PartitionedPTF": _value,
    "MultiTableUnionPTF": _union,
    "UserTransformPTF": _user,
    "CountingPTF": _counting,
    "ListStatePTF": _list_state,
    "MapStatePTF": _map_counts,
    "ConditionalTtlUpdatePTF": _conditional,
    "RowStatePTF": _row_state,
    "TimerPTF": _timer,
    "UnnamedTimerPTF": _unnamed_timer,
    "TimerWithStatePTF": _timer_state,
    "CascadingTimerPTF": _cascading,
    "WatermarkOnlyTimerPTF": _watermark_only,
    "MultiTableTimerPTF": _multi_timer,
    "ContextClearStatePTF": _clearing,
    "ContextSemanticsIntrospectionPTF": _introspection,
    "UpsertSetSemanticPTF": _upsert,
    "TwoTableChangelogModePTF": _modes,
    "GreetingWithLastPurchase": _greeting,
    "CustomAggregation": _custom_aggregation,
    "PingLaterFunction": _ping,
    # Never called: what counts is how they are declared.
    **dict.fromkeys(
        (
            "ReservedArgFunction",
            "InvalidMultiTableWithRowFunction",
            "InvalidTypedUpdatingArgFunction",
            "InvalidPassThroughTables",
            "InvalidBroadcastStateFunction",
            "MissingStateType",
            "MissingDefaultConstructorState",
        ),
        _empty,
    ),
}

TIMERS: dict[str, Timer] = {
    "NamedTimersFunction": _named_timers_fired,
    "UnnamedTimersFunction": _unnamed_timers_fired,
    "LateTimersFunction": _late_timers_fired,
    "PojoStateTimeFunction": _pojo_time_fired,
    "ChainedSendingFunction": _chained_fired,
    "BroadcastLookupFunction": _lookup_fired,
    "MultiBroadcastFunction": _multi_broadcast_fired,
    "BroadcastClearStateFunction": _lookup_fired,
    "TimedJoinFunction": _timed_join_fired,
    "TimerPTF": _said(lambda ctx, s: (f"timer-fired-{ctx.current_timer}",)),
    "UnnamedTimerPTF": _said(lambda ctx, s: (f"fired-unnamed-{text(ctx.current_timer)}",)),
    "TimerWithStatePTF": _said(lambda ctx, s: (f"count={s['state'].count}",)),
    "CascadingTimerPTF": _cascading_fired,
    "WatermarkOnlyTimerPTF": _said(lambda ctx, s: (f"fired-{ctx.current_timer}",)),
    "MultiTableTimerPTF": _said(lambda ctx, s: ("timer-fired",)),
    "ContextClearStatePTF": _said(lambda ctx, s: ("timer-fired",)),
    "ContextSemanticsIntrospectionPTF": _said(lambda ctx, s: _semantics(ctx)),
    "PingLaterFunction": _said(lambda ctx, s: "ping"),
}
