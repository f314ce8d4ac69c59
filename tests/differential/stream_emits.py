"""Cases of window aggregates that fire early and late, over rows or changes that arrive late, with restarts."""

import datetime as dt
from typing import Any

from tests.differential.cases import Case
from tests.differential.choices import Choices
from tests.differential.stream_processes import DELAYS, started_stream
from tests.differential.tables import Settings, written
from tests.differential.window_model import fired
from tests.differential.windows import draw_windows

__all__ = ["draw_stream_of_emits"]

SUMS = ("sum_bigint", "vsum_bigint", "rsum_bigint", "bsum_bigint")
CALLS = (
    "remote.function({!r})('v').alias('s')", "remote.function('count_bigint')('v').alias('n')",
    "F.max('v').alias('m')", "F.expr('count(DISTINCT v) AS d')",
)  # fmt: skip
"""The values of the model."""


def draw_stream_of_emits(draw: Choices, settings: Settings, files: list[Any], ddl: str) -> Case:
    """Early fires, late fires or both, compared with the model. The session's time zone is UTC."""
    tags = {"stream", "stream of emits"}
    windows, delay = draw_windows(draw), draw.of(DELAYS)
    early = not draw.chance(30)
    lateness = draw.of((10, 30, 120)) if not early or draw.chance(50) else None
    sums = SUMS
    if draw.chance(60):
        tags.add("stream of emits over changes")
        files, sums, ddl = _changes(draw, files), SUMS[:3], f"{ddl}, row_kind string"
    calls = draw.some(range(len(CALLS)), 1)
    called = ", ".join(CALLS[number].format(draw.of(sums)) for number in calls)
    options = ["early_fire_delay='0 s'"] if early else []
    if lateness is not None:
        options += ["late_fire_delay='0 s'", f"allow_lateness='{lateness} minutes'"]
    lengths = [windows.size] if windows.kind == "TUMBLE" else [windows.step, windows.size]
    texts = ", ".join(f"'{minutes} minutes'" for minutes in [*lengths, *([windows.offset] if windows.offset else [])])
    source = f"w.{windows.kind.lower()}(spark.table('s'), 'at', {texts})"
    query = f"remote.group_by({source}, 'window_start', 'window_end', 'k').emit({', '.join(options)}).agg({called})"
    expected = fired(
        [[(*row[:3], row[3].replace(tzinfo=None), *row[4:]) for row in file] for file in files],
        dt.timedelta(minutes=int(delay.split()[0])), windows,
        (early, None if lateness is None else dt.timedelta(minutes=lateness)), calls,
    )  # fmt: skip
    return Case(settings, (), started_stream(draw, files, delay, query, ddl).ours, written(expected), tags)


def _changes(draw: Choices, files: list[Any]) -> list[Any]:
    """The rows as insertions, between which some of them are deleted or updated, also long after they arrived."""
    left: list[tuple[Any, ...]] = []
    changed = []
    for file in files:
        rows: list[tuple[Any, ...]] = []
        for row in file:
            left.append(row)
            rows.append((*row, "+I"))
            if draw.chance(40):
                before = left.pop(draw.below(len(left)))
                if draw.chance(50):
                    rows.append((*before, "-D"))
                else:
                    # An update may move a row to another key or window.
                    left.append((before[0], row[1], draw.below(3), row[3]))
                    rows += [(*before, "-U"), (*left[-1], "+U")]
        changed.append(rows)
    return changed
