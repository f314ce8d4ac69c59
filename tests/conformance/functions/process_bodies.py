"""The bodies of the cases' process table functions, by name: a body and the action of a timer.

A body gets the context, its state entries by name and its arguments by name, and yields rows.
"""

import datetime
from collections.abc import Iterator
from typing import Any

import udf_server as udf
from tests.conformance.functions import process_step_bodies as steps
from tests.conformance.functions.process_texts import MAX, Body, Timer, Times, descriptor, echo, emitted, entries, text

__all__ = ["BODIES", "MODES", "TIMERS"]

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
    puts: list[Any] = [lambda: view.__setitem__(None, 42), lambda: view.update({None: 42})]
    for put in puts:
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


def _notified(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    reset, stats = a["control"], s["stats"]
    if reset is None:
        stats.name = a["input"].name
        stats.rows += 1
        yield emitted(a["input"], stats.rows)
    elif reset.name is not None and stats is None:
        s["resets"].value = (s["resets"].value or 0) + 1
    elif reset.name is not None:
        yield emitted(reset.name, stats, s["resets"].value)
        if reset.name == stats.name:
            ctx.clear_all_state()


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
    "EmptyArgFunction": steps.only_text,
    "IntervalDayArgFunction": echo("d"),
    "ScalarArgsFunction": echo("i", "b"),
    "VariantFunction": echo("variant1", "variant2", "variant3"),
    "f (echo)": steps.echoed,
    "UpdatingRetractFunction": _updating,
    "UpdatingRetractRowSemanticFunction": _updating,
    "UpdatingUpsertFunction": _updating,
    "InvalidUpdatingSemanticsFunction": _updating,
    **dict.fromkeys(("EmptyOutputRowSemanticFunction", "EmptyOutputFunction"), steps.empty),
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
    "NotifyStatefulSetsFunction": _notified,
    "MultiInputWithScalarArgsFunction": echo("in1", "in2", "m", "i", "r"),
    "MultiInputFunction": echo("in1", "in2"),
    "TimedJoinFunction": _timed_join,
    "OrderByFunction": _order_by,
    "FilterPTF": steps.at_least,
    "ScalarOnlyContextPTF": steps.scalar_only,
    "PartitionedPTF": steps.value,
    "MultiTableUnionPTF": steps.union,
    "UserTransformPTF": steps.user,
    "CountingPTF": steps.counting,
    "ListStatePTF": steps.list_state,
    "MapStatePTF": steps.map_counts,
    "ConditionalTtlUpdatePTF": steps.conditional,
    "RowStatePTF": steps.row_state,
    "TimerPTF": steps.timer,
    "UnnamedTimerPTF": steps.unnamed_timer,
    "TimerWithStatePTF": steps.timer_state,
    "CascadingTimerPTF": steps.cascading,
    "WatermarkOnlyTimerPTF": steps.watermark_only,
    "MultiTableTimerPTF": steps.multi_timer,
    "ContextClearStatePTF": steps.clearing,
    "ContextSemanticsIntrospectionPTF": steps.introspection,
    "UpsertSetSemanticPTF": steps.upsert,
    "TwoTableChangelogModePTF": steps.modes,
    "GreetingWithLastPurchase": steps.greeting,
    "CustomAggregation": steps.custom_aggregation,
    "PingLaterFunction": steps.ping,
    # These are never called: only their declarations matter.
    **dict.fromkeys(
        (
            "ReservedArgFunction",
            "InvalidMultiTableWithRowFunction",
            "InvalidTypedUpdatingArgFunction",
            "InvalidPassThroughTables",
            "InvalidBroadcastStateFunction",
            "MissingStateType",
            "MissingDefaultConstructorState",
            "passthrough",
        ),
        steps.empty,
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
    "TimerPTF": steps.said(lambda ctx, s: (f"timer-fired-{ctx.current_timer}",)),
    "UnnamedTimerPTF": steps.said(lambda ctx, s: (f"fired-unnamed-{text(ctx.current_timer)}",)),
    "TimerWithStatePTF": steps.said(lambda ctx, s: (f"count={s['state'].count}",)),
    "CascadingTimerPTF": steps.cascading_fired,
    "WatermarkOnlyTimerPTF": steps.said(lambda ctx, s: (f"fired-{ctx.current_timer}",)),
    "MultiTableTimerPTF": steps.said(lambda ctx, s: ("timer-fired",)),
    "ContextClearStatePTF": steps.said(lambda ctx, s: ("timer-fired",)),
    "ContextSemanticsIntrospectionPTF": steps.said(lambda ctx, s: steps.semantics(ctx)),
    "PingLaterFunction": steps.said(lambda ctx, s: "ping"),
}
