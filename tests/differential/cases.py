"""A case: settings, tables, and Python that computes the same rows with remote functions and without."""

import dataclasses
import json
import re

from tests.differential.choices import Choices
from tests.differential.tables import Settings, Table, draw_table
from tests.differential.values import ZONES, clock_change

__all__ = ["Case", "draw_settings", "draw_tables", "mentioned", "script"]

OTHERS = (
    ("spark.sql.codegen.wholeStage", "true"), ("spark.sql.adaptive.enabled", "true"),
    ("spark.sql.execution.arrow.maxRecordsPerBatch", "1"), ("spark.sql.execution.arrow.maxRecordsPerBatch", "3"),
    *[("spark.sql.objectHashAggregate.sortBased.fallbackThreshold", "1")] * 4,
    ("spark.sql.autoBroadcastJoinThreshold", "-1"),
    ("spark.sql.parser.escapedStringLiterals", "true"), ("spark.sql.legacy.setopsPrecedence.enabled", "true"),
    ("spark.sql.legacy.consecutiveStringLiterals.enabled", "true"),
    ("spark.sql.shuffle.partitions", "1"), ("spark.remoteudf.bundled-agg.size", "2"),
    ("spark.remoteudf.bundled-agg.size", "1"),
    *[("spark.remoteudf.bundled-agg.aggregate-plan", plan) for plan in ("one-task", "sorted", "auto", "auto")],
)  # fmt: skip


@dataclasses.dataclass
class Case:
    """A comparison: `ours` and `sparks` are Python expressions for a DataFrame, or for a list of rows."""

    settings: Settings
    tables: tuple[Table, ...]
    ours: str
    sparks: str
    tags: set[str]
    ordered: bool = False
    """Whether the order of the rows is determined."""
    names: list[str | None] | None = None
    """The names of the columns; None for names that are not compared."""


def mentioned(tables: tuple[Table, ...], text: str) -> tuple[Table, ...]:
    """The tables to which a text refers."""
    return tuple(table for table in tables if re.search(rf"\b{table.name}\b", text))


def draw_settings(draw: Choices) -> Settings:
    """Random Spark settings."""
    zone = draw.of(ZONES)
    others = tuple(dict(draw.some(OTHERS, 0, 2)).items()) if draw.chance(50) else ()
    return Settings(zone, clock_change(draw, zone), not draw.chance(30), draw.chance(25), others)


def draw_tables(draw: Choices, settings: Settings, needed: tuple[str, ...] = ()) -> tuple[Table, ...]:
    """Two random tables, `t` and `u`, the second smaller; some have more keys than Spark's hash aggregation holds."""
    wanted = needed or tuple(draw.some(("timestamp", "timestamp_ntz"), 1 - draw.below(4) // 3, 1))
    return draw_table(draw, "t", settings, needed=wanted), draw_table(draw, "u", settings, most_rows=4)


def script(case: Case, what: str) -> str:
    """The case as a Python file that runs from the root of the project and prints both results."""
    tables = "\n".join(table.source() for table in case.tables)
    return f'''"""{what}"""

import datetime as dt
from decimal import Decimal

from tests.differential.world import *  # noqa: F403

configure({json.dumps(case.settings.conf(), indent=4)})
{tables}
compare(
    lambda: {case.ours},
    lambda: {case.sparks},
    ordered={case.ordered},
)
'''
