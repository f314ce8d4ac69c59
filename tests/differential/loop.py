"""The loop: draws cases from a seed until the time is over, and shrinks differences."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from tests.differential.cascades import draw_cascade
from tests.differential.cases import Case
from tests.differential.changelogs import draw_changelog
from tests.differential.choices import Choices
from tests.differential.frames import draw_frame
from tests.differential.joined_rows import draw_estimate, draw_lateral_join
from tests.differential.process import draw_process
from tests.differential.queries import draw_query
from tests.differential.report import Report
from tests.differential.running import run
from tests.differential.shrink import shrink
from tests.differential.streams import draw_stream

__all__ = ["KINDS", "loop"]

KINDS: dict[str, tuple[int, Callable[[Choices], Case]]] = {
    "sql": (60, draw_query),
    "frame": (25, draw_frame),
    "lateral_join": (4, draw_lateral_join),
    "estimate": (2, draw_estimate),
    "cascade": (3, draw_cascade),
    "process": (10, draw_process),
    "changelog": (4, draw_changelog),
    "stream": (3, draw_stream),
}
"""Generators by name, with their weights."""


def loop(
    seed: str, seconds: float, *, only: str = "", directory: Path, shrinking: float = 60.0,
    cases: int | None = None,
) -> Report:  # fmt: skip
    """Run cases for this many seconds. Case n of a seed is always the same."""
    logging.disable(logging.CRITICAL)  # PySpark logs every expected error
    report, began, number = Report(directory), time.monotonic(), 0
    print(f"seed {seed}", flush=True)
    while time.monotonic() - began < seconds and (cases is None or report.cases < cases):
        name = f"{seed}-{number}"
        number += 1
        if only.isdigit() and number - 1 != int(only):
            if number > int(only):
                break
            continue
        draw = _generator(Choices(f"{name}/kind"), "" if only.isdigit() else only)
        choices = Choices(name)
        case = draw(choices)
        kind, ours, sparks = run(case)
        if report.count(case, kind, ours, sparks):
            small = shrink(draw, choices.made, lambda case, kind=kind: run(case)[0] == kind, seconds=shrinking)
            _, ours, sparks = run(small)
            report.write(name, small, kind, ours, sparks)
    report.print(seed, time.monotonic() - began)
    return report


def _generator(draw: Choices, only: str) -> Callable[[Choices], Case]:
    if only:
        return KINDS[only][1]
    return draw.weighted([(weight, generator) for weight, generator in KINDS.values()])
