"""Cases of windows that fire early and late, over rows or changes that arrive late, and of windows of changes."""

import datetime as dt
from typing import Any

from tests.differential.cases import Case
from tests.differential.choices import Choices
from tests.differential.stream_processes import DELAYS, started_stream
from tests.differential.tables import Settings, written
from tests.differential.window_model import fired, windows_of
from tests.differential.windows import Windows, draw_windows

__all__ = ["draw_stream_of_changes", "draw_stream_of_emits"]

SUMS = ("sum_bigint", "vsum_bigint", "rsum_bigint", "bsum_bigint")
CALLS = (
    "remote.function({!r})('v').alias('s')", "remote.function('count_bigint')('v').alias('n')",
    "F.max('v').alias('m')", "F.expr('count(DISTINCT v) AS d')",
)  # fmt: skip
"""The values of the model."""
LONG = dt.timedelta(days=10)
"""A delay with which no row is late; a row that follows twice as long after all others closes their windows."""


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
    calls, called = _calls(draw, sums)
    options = ["early_fire_delay='0 s'"] if early else []
    if lateness is not None:
        options += ["late_fire_delay='0 s'", f"allow_lateness='{lateness} minutes'"]
    source = _source(windows)
    query = f"remote.group_by({source}, 'window_start', 'window_end', 'k').emit({', '.join(options)}).agg({called})"
    expected = fired(
        [[(*row[:3], row[3].replace(tzinfo=None), *row[4:]) for row in file] for file in files],
        dt.timedelta(minutes=int(delay.split()[0])), windows,
        (early, None if lateness is None else dt.timedelta(minutes=lateness)), calls,
    )  # fmt: skip
    return Case(settings, (), started_stream(draw, files, delay, query, ddl).ours, written(expected), tags)


def draw_stream_of_changes(draw: Choices, settings: Settings, files: list[Any], ddl: str) -> Case:
    """Changes of which none is late: windows of the remaining rows are aggregated, or ranked, once."""
    tags = {"stream", "stream of net changes"}
    windows = draw_windows(draw)
    last = (-1, "far", 0, max(row[3] for file in files for row in file) + 2 * LONG)
    changed = [*_changes(draw, files), [(*last, "+I")]]
    clocks = [[(*row[:3], row[3].replace(tzinfo=None), row[4]) for row in file] for file in changed]
    if draw.chance(40):
        tags.add("stream of net changes ranked")
        most, keys = draw.between(1, 2), draw.of((["k"], []))
        query = (
            f"w.window_top_n({_source(windows)}, {most}, ['v', 'id'], {keys}, rank_column='nth')"
            ".select('window_start', 'window_end', 'k', 'id', 'v', 'nth')"
        )
        expected = _ranked(clocks, windows, most, bool(keys))
    else:
        calls, called = _calls(draw, SUMS[:3])
        query = f"remote.group_by({_source(windows)}, 'window_start', 'window_end', 'k').agg({called})"
        expected = [row[1:] for row in fired(clocks, LONG, windows, (False, None), calls)]
    started = started_stream(draw, changed, f"{LONG.days} days", query, f"{ddl}, row_kind string").ours
    return Case(settings, (), started, written(expected), tags)


def _ranked(files: list[Any], windows: Windows, most: int, keyed: bool) -> list[tuple[Any, ...]]:
    left: list[tuple[Any, ...]] = []
    for row in (row for file in files[:-1] for row in file):
        if row[4] in ("+I", "+U"):
            left.append(row[:4])
        else:
            left.remove(row[:4])
    groups: dict[Any, list[tuple[Any, ...]]] = {}
    for row in left:
        for bounds in windows_of(windows, row[3]):
            groups.setdefault((bounds, row[1] if keyed else None), []).append(row)
    found = []
    for (bounds, _), rows in groups.items():
        rows.sort(key=lambda row: (row[2] is not None, row[2] or 0, row[0]))
        found += [(*bounds, k, id_, v, nth) for nth, (id_, k, v, _) in enumerate(rows[:most], 1)]
    return found


def _calls(draw: Choices, sums: tuple[str, ...]) -> tuple[list[int], str]:
    """Some of the values of the model, and the calls that compute them."""
    calls = draw.some(range(len(CALLS)), 1)
    return calls, ", ".join(CALLS[number].format(draw.of(sums)) for number in calls)


def _source(windows: Windows) -> str:
    lengths = [windows.size] if windows.kind == "TUMBLE" else [windows.step, windows.size]
    texts = ", ".join(f"'{minutes} minutes'" for minutes in [*lengths, *([windows.offset] if windows.offset else [])])
    return f"w.{windows.kind.lower()}(spark.table('s'), 'at', {texts})"


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
