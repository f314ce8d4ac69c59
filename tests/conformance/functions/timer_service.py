"""A function whose rows are commands to its timers, for cases that drive nothing but timers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import udf_server as udf
from udf_server import ArgumentTrait
from udf_server.testing import ProcessTableHarness, table

__all__ = ["FIRED", "service_harness"]

FIRED: dict[str, Mapping[str, Any]] = {}
"""What a timer does when it fires, by its name."""
Commands = Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]


class _Service(udf.ProcessTableFunction):
    returns = "out string"

    def eval(self, ctx: udf.ProcessContext, **tables: Any) -> Iterator[Any]:
        raise NotImplementedError

    def on_timer(self, ctx: udf.ProcessContext) -> Iterator[Any]:
        told = FIRED.get(ctx.current_timer or "", {})
        for _, time, name in told.get("register", ()):
            ctx.register_on_time(name, time)
        if "clear_name" in told:
            ctx.clear_timer(told["clear_name"][1])
        yield from ()


def _obey(ctx: udf.ProcessContext, row: Any) -> None:
    if row.op == "register":
        ctx.register_on_time(row.name, row.time) if row.name is not None else ctx.register_on_time(row.time)
    elif row.op == "clear all":
        ctx.clear_all_timers()
    else:
        ctx.clear_timer(row.name if row.name is not None else row.time)


class _One(_Service):
    def eval(self, ctx: udf.ProcessContext, a: Commands) -> Iterator[Any]:  # type: ignore[override]
        _obey(ctx, a)
        yield from ()


class _Two(_Service):
    def eval(self, ctx: udf.ProcessContext, a: Commands, b: Commands) -> Iterator[Any]:  # type: ignore[override]
        _obey(ctx, a if a is not None else b)
        yield from ()


class _Harness(ProcessTableHarness):
    """Tables by the names of the cases, `table-a` and `table-b`."""

    def row(self, name: str, values: Any, kind: Any = "+I") -> None:
        super().row(name.removeprefix("table-"), values, kind)

    def watermark(self, time: Any, table: str | None = None) -> None:
        super().watermark(time, table and table.removeprefix("table-"))


def service_harness(steps: Sequence[Mapping[str, Any]]) -> ProcessTableHarness:
    """A harness for the steps of one case."""
    FIRED.clear()
    names = {step["table"].removeprefix("table-") for step in steps if step.get("table")} | {"a"}
    given = table("key string, op string, name string, time bigint", partition_by="key")
    return _Harness(_Two if "b" in names else _One, dict.fromkeys(sorted(names), given), also_batch=False)
