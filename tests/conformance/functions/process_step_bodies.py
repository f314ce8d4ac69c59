"""The bodies of process table functions whose cases run step by step."""

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import udf_server as udf
from tests.conformance.functions.process_texts import Timer, emitted, text


def at_least(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["input"].value >= a["threshold"]:
        yield (a["input"].value,)


def scalar_only(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    time = ctx.time_context()
    yield time.time(), time.current_watermark(), a["a"] + a["b"]


def union(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    left, right = a["leftTable"], a["rightTable"]
    yield (f"LEFT: {text(left)}" if left is not None else f"RIGHT: {text(right)}",)


def counting(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    s["state"].counter += 1
    yield (s["state"].counter,)


def list_state(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    s["listState"].append(a["input"].value)
    yield (list(s["listState"]),)


def map_counts(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    key = a["input"]["key"]
    s["mapState"][key] = s["mapState"].get(key, 0) + 1
    yield key, s["mapState"][key]


def conditional(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["input"].value > 0:
        s["state"].counter += 1
    yield from ()


def row_state(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    s["memory"].count = (s["memory"].count or 0) + 1
    yield (s["memory"].count,)


def timer(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    ctx.register_on_time(f"timeout-{a['input'].name}", ctx.time + datetime.timedelta(seconds=5))
    yield (f"registered-{a['input'].name}",)


def unnamed_timer(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    ctx.register_on_time(ctx.time + datetime.timedelta(seconds=5))
    yield ("registered",)


def timer_state(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    s["state"].count += 1
    ctx.register_on_time("check", ctx.time + datetime.timedelta(seconds=5))
    yield from ()


def cascading(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    ctx.register_on_time("first", ctx.time + datetime.timedelta(seconds=5))
    yield ("eval",)


def cascading_fired(ctx: Any, s: Any) -> Iterator[Any]:
    yield (f"fired-{ctx.current_timer}",)
    if ctx.current_timer == "first":
        ctx.register_on_time("second", ctx.time - datetime.timedelta(seconds=2))


def watermark_only(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    watermark = ctx.time_context(int).current_watermark()
    ctx.register_on_time("t", 1 if watermark is None or watermark < 0 else watermark + 1)
    yield ("registered",)


def multi_timer(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["leftTable"] is not None:
        ctx.register_on_time("check", ctx.time + datetime.timedelta(seconds=5))
        yield ("left",)
    else:
        yield ("right",)


def clearing(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
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


def semantics(ctx: Any) -> tuple[str, int, str]:
    semantics = ctx.table_semantics_for("input")
    return str(list(semantics.partition_by_columns)), semantics.time_column, str(ctx.changelog_mode)


def introspection(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield semantics(ctx)
    ctx.register_on_time("check", ctx.time + datetime.timedelta(seconds=5))


def upsert(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    row = a["input"]
    yield udf.Row(row["key"], row["value"], kind="-D" if row["value"] is None else "+U")


def modes(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield tuple(str(ctx.table_semantics_for(each).changelog_mode) for each in ("retracting", "plain"))


def user(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield a["user"].name, a["user"].age + 1


def greeting(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    if a["purchase"] is not None:
        s["state"].lastItem = a["purchase"].item
    elif s["state"].lastItem is None:
        yield f"Hello {a['visit'].name}, let me know if I can help!"
    else:
        yield f"Hello {a['visit'].name}, here to buy {s['state'].lastItem} again?"


def custom_aggregation(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
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


def ping(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    ctx.register_on_time("ping", ctx.time + datetime.timedelta(minutes=1))
    yield from ()


def said(make: Callable[[Any, dict[str, Any]], Any]) -> Timer:
    """Returns a timer that emits one row."""

    def timer(ctx: udf.ProcessContext, s: dict[str, Any]) -> Iterator[Any]:
        yield make(ctx, s)

    return timer


def empty(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield ()


def value(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield (a["input"].value,)


def echoed(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    ((name, row),) = a.items()
    key = ctx.table_semantics_for(name).partition_by_columns
    yield udf.Row(*(value for index, value in enumerate(row) if index not in key), kind=row.kind)


def only_text(ctx: Any, s: Any, a: Any) -> Iterator[Any]:
    yield emitted("empty")
