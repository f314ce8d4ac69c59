"""Process table functions: `machine` runs a small program with state and timers; there are others, too."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import udf_server as udf
from udf_server import ArgumentTrait, ListView, MapView, StateHint, ValueView

COLUMNS = "what string, total bigint, items array<bigint>, entries map<string,bigint>, n int, last bigint"


@dataclass
class Record:
    """State that is changed in place."""

    n: int = 0
    last: int | None = None


def _run(program: str, ctx: udf.ProcessContext, what: str, v: int | None, state: tuple[Any, ...]) -> None:
    total, items, entries, record = state
    for step in program.split(";"):
        match step.split():
            case ["sum"]:
                total.value = (total.value or 0) + (v or 0)
            case ["push"]:
                items.append(v or 0)
            case ["pop"] if len(items):
                del items[0]
            case ["put"]:
                entries[str(v)] = v
            case ["drop"] if "1" in entries:
                del entries["1"]
            case ["note"]:
                record.n += 1
                record.last = v
            case ["timer", name, minutes]:
                ctx.register_on_time(name, ctx.time + dt.timedelta(minutes=int(minutes)))
            case ["tick", minutes]:
                ctx.register_on_time(ctx.time + dt.timedelta(minutes=int(minutes)))
            case ["untimer", name]:
                ctx.clear_timer(name)
            case ["untimers"]:
                ctx.clear_all_timers()
            case ["clear", name]:
                ctx.clear_state(name)
            case ["clear"]:
                ctx.clear_all_state()
            case ["emit"]:
                ctx.collect((what, total.value, list(items), dict(entries.items()), record.n, record.last))
            case ["twice"]:
                row = [what, 1, [1], {"a": 1}, 1, None]
                ctx.collect(row)
                row[1], row[5] = 2, v
                row[2].append(2)
                row[3]["b"] = 2
                ctx.collect(row)


class Machine(udf.ProcessTableFunction):
    """Runs a program for each row, and another one for each timer."""

    returns = COLUMNS

    def eval(
        self,
        ctx: udf.ProcessContext,
        total: Annotated[ValueView[int], StateHint()],
        items: Annotated[ListView[int], StateHint()],
        entries: Annotated[MapView[str, int], StateHint()],
        record: Annotated[Record, StateHint()],
        programs: Annotated[ValueView[str], StateHint()],
        rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE],
        program: str,
        on_timer: str = "",
    ) -> Iterator[tuple[Any, ...]]:
        programs.value = on_timer
        _run(program, ctx, "row", rows.v, (total, items, entries, record))
        yield from ()

    def on_timer(
        self,
        ctx: udf.ProcessContext,
        total: ValueView[int],
        items: ListView[int],
        entries: MapView[str, int],
        record: Record,
        programs: ValueView[str],
    ) -> Iterator[tuple[Any, ...]]:
        _run(programs.value or "", ctx, f"timer {ctx.current_timer}", None, (total, items, entries, record))
        yield from ()


class Numbered(udf.ProcessTableFunction):
    """Numbers rows in the order in which they arrive."""

    returns = "seq int, id bigint"

    def eval(
        self,
        n: Annotated[ValueView[int], StateHint()],
        rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.OPTIONAL_PARTITION_BY],
    ) -> Iterator[tuple[int, int]]:
        n.value = (n.value or 0) + 1
        yield n.value, rows.id


class Merged(udf.ProcessTableFunction):
    """Counts the rows of two tables."""

    returns = "n int"

    def eval(
        self,
        ctx: udf.ProcessContext,
        n: Annotated[ValueView[int], StateHint()],
        one: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE],
        other: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE],
    ) -> Iterator[tuple[int]]:
        n.value = (n.value or 0) + 1
        yield (n.value,)


class Repeated(udf.ProcessTableFunction):
    """Repeats each row, with its columns passed through; the same object is emitted each time."""

    returns = "number int"

    def eval(
        self,
        ctx: udf.ProcessContext,
        rows: Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE, ArgumentTrait.PASS_COLUMNS_THROUGH],
        times: int,
    ) -> Iterator[tuple[int]]:
        emitted = [0]
        for number in range(times):
            emitted[0] = number
            if number % 2:
                yield emitted
            else:
                ctx.collect(emitted)


FUNCTIONS = (Machine, Numbered, Merged, Repeated)
