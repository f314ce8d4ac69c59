"""Reads from Spark's cost plan how many rows a frame has at most. A text that is not understood tells nothing.

A bound holds whatever the statistics are worth: it consists of the rows of sources that Spark has counted itself, and
no step above them makes more rows than it gets. Counts of a catalog may be stale, and bytes do not tell rows.
"""

import re
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from spark_client.base.explained_plans import cost_plan
from spark_client.base.settings import all_settings, read_once

__all__ = ["SLOW_SECONDS", "SMALL_BYTES", "SMALL_ROWS", "RowBound", "bound_in", "bound_of"]

SMALL_ROWS = 200_000
SMALL_BYTES = 64 << 20
SLOW_SECONDS = 0.05
"""While Spark takes longer, it is asked at the 1st, 2nd, 3rd, 5th, 9th, 17th query over frames with the same columns.

A virtual machine that has just started takes long for any source, and a slow one for several queries.
"""
_NODE = re.compile(
    r"(?P<depth>(?:[ :]  )*(?:[+:]- )?)(?P<name>\w+)(?P<rest>.*), Statistics\(sizeInBytes=(?P<bytes>[\d.]+ \w+)"
    r"(?:, rowCount=(?P<rows>[\d.E+]+))?\)"
)
_DEPTH = re.compile(r"(?:[ :]  )*(?:[+:]- )?")
_NARROW = frozenset({"Project", "Filter", "LocalLimit", "Union"})
_WIDE = frozenset({
    "Sort", "GlobalLimit", "Aggregate", "Repartition", "RepartitionByExpression", "RebalancePartitions", "Window",
})  # fmt: skip
"""Steps that make no more rows than they get; those of a union are the sum of its sources."""
_COALESCE = re.compile(r" \d+, false$")
_COUNTED = frozenset({"Range", "LocalRelation", "OneRowRelation", "InMemoryRelation"})
_SCAN = re.compile(r"\w*Scan\w*\b(?! ExistingRDD)")
_COUNTED_SCAN = re.compile(r"(?:FileScan \w+ \[|LocalTableScan|InMemoryTableScan)")
"""Scans of what no catalog has statistics of."""
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}
_slow: weakref.WeakKeyDictionary[SparkSession, Counter[str]] = weakref.WeakKeyDictionary()
"""The number of queries since Spark last did not take long, by columns."""


class RowBound(NamedTuple):
    """What is known of the rows of a frame."""

    rows: int | None
    """None if their number is not bounded."""
    narrow: bool
    """Whether each partition is made of one partition of a source."""
    why: str
    """The bound, or what makes it unknown."""

    @property
    def small(self) -> bool:
        """Whether one task can take all rows."""
        return self.rows is not None and self.rows <= SMALL_ROWS


def bound_of(frame: DataFrame, clock: Callable[[], float] = time.perf_counter) -> RowBound:
    """The bound of a frame that is not a stream."""
    spark, columns = frame.sparkSession, frame.schema.simpleString()
    if read_once(spark, all_settings).get("spark.sql.cbo.enabled", "false").lower() == "true":
        return _unknown("spark.sql.cbo.enabled makes counts of rows estimates")
    slow = _slow.setdefault(spark, Counter())
    waited = slow[columns]
    slow[columns] += 1
    if waited & (waited - 1):  # not a power of two
        return _unknown("Spark took long to plan these columns before")
    before = clock()
    try:
        text = cost_plan(frame)
    except Exception as error:  # whatever is wrong with the query, Spark says so when it runs
        return _unknown(f"Spark's plan cannot be read ({type(error).__name__})")
    if clock() - before <= SLOW_SECONDS:
        del slow[columns]  # so that a session keeps nothing of frames that are planned quickly
    return bound_in(text)


def bound_in(text: str) -> RowBound:
    """The bound in the text of a cost plan."""
    plan, found, _ = text.partition("== Physical Plan ==")
    lines = [line for line in plan.partition("== Optimized Logical Plan ==\n")[2].splitlines() if line.strip()]
    if not found or not lines:
        return _unknown("Spark's plan is not as expected")
    rows, size, narrow, kept = 0, 0.0, True, -1
    for place, line in enumerate(lines):
        depth = _depth(line)
        if 0 <= kept < depth:
            # How a cache was computed. Until it is filled, its count is that of its source.
            if _SCAN.search(line) and not _COUNTED_SCAN.search(line):
                return _unknown("a cached table may have the count of a catalog")
            continue
        node = _NODE.fullmatch(line)
        if node is None:
            return _unknown("Spark's plan is not as expected")
        name, leaf = node["name"], place + 1 == len(lines) or _depth(lines[place + 1]) <= depth
        kept = depth if name == "InMemoryRelation" else -1
        if name in _COUNTED and (node["rows"] or name == "OneRowRelation"):
            number, unit = node["bytes"].split()
            rows += int(float(node["rows"] or 1))
            size += float(number) * _UNITS.get(unit, 1 << 30)
        elif leaf or name not in _NARROW | _WIDE:
            return _unknown(f"nothing tells the rows of {name}")
        narrow = narrow and (name not in _WIDE or _COALESCE.match(node["rest"]) is not None)
    if size > SMALL_BYTES:
        return _unknown(f"its sources have more than {SMALL_BYTES >> 20} MiB")
    return RowBound(rows, narrow, f"the input has at most {rows:,} rows")


def _unknown(why: str) -> RowBound:
    return RowBound(None, narrow=False, why=why)


def _depth(line: str) -> int:
    found = _DEPTH.match(line)
    return found.end() if found else 0
