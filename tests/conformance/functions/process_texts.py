"""The texts that process table functions of the cases print."""

import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql.types import VariantVal

import udf_server as udf

__all__ = ["MAX", "Body", "Timer", "Times", "descriptor", "echo", "emitted", "entries", "text"]

Body = Callable[[udf.ProcessContext, dict[str, Any], dict[str, Any]], Iterator[Any]]
Timer = Callable[[udf.ProcessContext, dict[str, Any]], Iterator[Any]]
MAX = 2**63 - 1


def text(value: Any) -> str:
    """Formats a value as the cases do."""
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
    """The texts of the cases about time, and the actions that they name."""

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
