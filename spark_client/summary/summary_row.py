"""SummaryRow: what a summary shows of one function in one stage, as text, as columns and as HTML."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from operator import attrgetter

from remote_udf.option_values import percent
from spark_client.base.budget import SessionBudget
from spark_client.base.notebooks import bar
from spark_client.base.statistics import Statistics, amounts_text

__all__ = ["COLUMNS", "HEAD", "SummaryRow", "budget_lines", "cells", "paragraph"]


@dataclass(frozen=True)
class SummaryRow:
    """The statistics of a function in a stage. `stage` is None for the sum over all micro-batches of a stream."""

    function: str
    stage: int | None
    on_error: str
    tasks: int
    statistics: Statistics


def _statistics(type_: str, *names: str) -> dict[str, tuple[str, Callable[[SummaryRow], object]]]:
    """Columns of this type with the statistics of these names."""
    return {name: (type_, attrgetter(f"statistics.{name}")) for name in names}


COLUMNS: dict[str, tuple[str, Callable[[SummaryRow], object]]] = {
    "function": ("string", lambda row: row.function),
    "stage": ("int", lambda row: row.stage),
    "tasks": ("bigint", lambda row: row.tasks),
    **_statistics("bigint", "rows", "ok", "failed"),
    "on_error": ("string", lambda row: row.on_error),
    **_statistics("bigint", "skipped", "calls", "retries", "cache_hits", "cache_misses", "cache_shared", "calls_saved"),
    **_statistics("map<string, double>", "spent"),
    **_statistics("map<string, string>", "lowered"),
    **_statistics("bigint", "batches", "replays", "reconnects", "bytes_out", "bytes_in"),
    **_statistics("double", "task_seconds", "spark_seconds", "waiting_seconds", "batch_seconds"),
    **_statistics("double", "wire_seconds", "queue_seconds", "function_seconds"),
    "p50_seconds": ("double", lambda row: row.statistics.quantile(0.5)),
    "p99_seconds": ("double", lambda row: row.statistics.quantile(0.99)),
}
"""The columns of `JobSummary.frame`: the type and the value of each."""


def paragraph(row: SummaryRow) -> Iterator[str]:
    """The row as lines of text, without their ends."""
    statistics = row.statistics
    where = "stream" if row.stage is None else f"stage {row.stage}"
    yield (
        f"{row.function}, {where}: {statistics.rows:,} rows: {statistics.ok:,} ok, {statistics.failed:,} failed "
        f"({row.on_error}), {statistics.skipped:,} skipped"
    )
    yield (
        f"  {statistics.calls:,} calls, {statistics.retries:,} of them retries; {statistics.batches:,} batches, "
        f"{statistics.replays} replays, {statistics.reconnects} reconnects; "
        f"{_bytes(statistics.bytes_out)} out, {_bytes(statistics.bytes_in)} in"
    )
    if statistics.calls_saved or statistics.cache_misses:
        yield (
            f"  cache: {statistics.cache_hits:,} hits, {statistics.cache_misses:,} misses, {statistics.cache_shared:,} "
            f"shared; {statistics.calls_saved:,} calls saved"
        )
    if statistics.spent:
        yield f"  spent: {amounts_text(statistics.spent)}"
    if statistics.lowered:
        yield f"  lowered by the server: {', '.join(f'{name} to {text}' for name, text in statistics.lowered.items())}"
    yield (
        f"  {row.tasks:,} tasks of {statistics.task_seconds:.2f} s in all: {statistics.spark_seconds:.2f} s in Spark, "
        f"{statistics.waiting_seconds:.2f} s waiting for the server"
    )
    half, most = statistics.quantile(0.5), statistics.quantile(0.99)
    if half is None or most is None:
        return
    yield (
        f"  a batch took {_seconds(half)} (p50), {_seconds(most)} (p99): "
        f"{_share(statistics.function_seconds, statistics)} function, "
        f"{_share(statistics.queue_seconds, statistics)} queue, {_share(statistics.wire_seconds, statistics)} wire"
    )


def budget_lines(budget: SessionBudget, total: Statistics) -> Iterator[str]:
    """Lines that compare a budget with what the tasks have spent that the summary knows."""
    # Rows that a budget refuses are no errors for it.
    failed, rows = total.failed - total.over_budget, total.rows - total.over_budget
    spent = {**total.spent, "calls": float(total.calls), "errors": float(failed)}
    shown = [f"{spent.get(unit, 0.0):,.6g} of {amount:,.6g} {unit}" for unit, amount in budget.amounts.items()]
    if budget.error_share is not None:
        share = 100 * failed / rows if rows else 0.0
        shown.append(f"{share:.3g} of {percent(budget.error_share)} errors")
    yield f"budget of the session: these tasks have spent {', '.join(shown)}\n"
    for unit in [unit for unit in budget.amounts if unit not in spent]:
        known = ", ".join(sorted(total.spent)) or "nothing"
        yield (
            f"  warning: no call has reported {unit!r} (reported: {known}), so the budget does not bound it; a "
            f"function reports it with context.spend({unit}=...)\n"
        )


HEAD = (
    "function", "stage", "tasks", "rows", "outcomes", "retries", "p50, p99", "time of tasks", "time of batches"
)  # fmt: skip
"""The names of the `cells`."""
_GREEN, _RED, _GREY, _BLUE, _ORANGE = "#2e9e5b", "#e0443a", "#8c8c8c", "#4285f4", "#e8830c"
"""Colours that are visible on light and on dark backgrounds."""


def cells(row: SummaryRow) -> list[str]:
    """The row as HTML, a cell for each name of the head."""
    statistics, half, most = row.statistics, row.statistics.quantile(0.5), row.statistics.quantile(0.99)
    outcomes = {
        "ok": (statistics.ok, _GREEN),
        f"failed ({row.on_error})": (statistics.failed, _RED),
        "skipped": (statistics.skipped, _GREY),
    }
    tasks = {"Spark": (statistics.spark_seconds, _BLUE), "waiting": (statistics.waiting_seconds, _ORANGE)}
    batches = {
        "function": (statistics.function_seconds, _GREEN),
        "queue": (statistics.queue_seconds, _ORANGE),
        "wire": (statistics.wire_seconds, _BLUE),
    }
    return [
        escape(row.function),
        "stream" if row.stage is None else str(row.stage),
        f"{row.tasks:,}",
        f"{statistics.rows:,}",
        bar(outcomes),
        f"{statistics.retries:,}",
        "" if half is None or most is None else f"{_seconds(half)}, {_seconds(most)}",
        f"{_seconds(statistics.task_seconds)}{bar(tasks)}",
        f"{_seconds(statistics.batch_seconds)}{bar(batches)}",
    ]


def _share(seconds: float, statistics: Statistics) -> str:
    return f"{100 * seconds / statistics.batch_seconds:.0f}%" if statistics.batch_seconds else "0%"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
