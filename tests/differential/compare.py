"""Outcomes of a query, which are rows or an error, and their comparison."""

import dataclasses
import datetime as dt
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import VariantVal

__all__ = ["Outcome", "difference", "outcome"]

CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")
RAISED = re.compile(r"^(?:\w+\.)+[A-Z]\w*: .*$", re.MULTILINE)
"""The last line of a Python traceback."""
PLANNED = {"AnalysisException", "ParseException", "PlanError", "UnsupportedType", "InvalidOption", "UnknownFunction"}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The rows of a query and its columns, or its error."""

    rows: tuple[Any, ...] | None = None
    types: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    error: str = ""
    """The class of the error, or Spark's error condition if there is one."""
    planned: bool = False
    """Whether the query was rejected before it ran."""
    message: str = ""

    @property
    def shown(self) -> str:
        """A readable form."""
        if self.rows is None:
            return f"{self.error}: {self.message[:600]}"
        return f"{len(self.rows)} rows of {list(self.types)}\n" + "\n".join(f"    {row}" for row in self.rows[:40])


def outcome(run: Any) -> Outcome:
    """The outcome of `run()`, which returns a DataFrame or a list of tuples."""
    try:
        found = run()
        if not isinstance(found, DataFrame):
            return Outcome(tuple(normal(tuple(row)) for row in found))
        fields = found.schema.fields
        unreadable = [field.dataType.typeName() == "yearmonthinterval" for field in fields]
        if any(unreadable):
            # Renamed, because names may contain dots.
            found = found.toDF(*(f"c{i}" for i in range(len(fields))))
            found = found.select(*(found[i].cast("string") if odd else found[i] for i, odd in enumerate(unreadable)))
        rows = tuple(normal(tuple(row)) for row in found.collect())
        types = tuple(field.dataType.simpleString() for field in fields)
        return Outcome(rows, types, tuple(field.name for field in fields))
    except Exception as error:  # the comparison says which are expected
        return _failed(error)


def _failed(error: Exception) -> Outcome:
    text = str(error)
    name = type(error).__name__
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    if name not in PLANNED and condition is None:
        conditions = [each for each in CONDITION.findall(text) if "_" in each]
        condition = conditions[0] if conditions else None
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    raised = RAISED.findall(text) if name not in PLANNED else []
    return Outcome(error=condition or name, planned=name in PLANNED, message=" | ".join([line, *raised[-1:]]))


def normal(found: Any) -> Any:
    """Convert a value so that results are equal exactly if the values are the same: NaN is NaN, -0.0 is not 0.0.

    Twelve digits of a double count: the last ones depend on the order in which numbers such as averages are added.
    """
    if isinstance(found, float):
        return f"{found:.12g}f"
    if isinstance(found, Decimal):
        return f"{found}d"
    if isinstance(found, VariantVal):
        return f"{found.toJson()}v"
    if isinstance(found, bytearray | bytes):
        return f"{bytes(found)!r}"
    if isinstance(found, dt.datetime | dt.date | dt.time | dt.timedelta):
        return str(found)
    if isinstance(found, dict):
        return ("map", *sorted((normal(key), normal(value)) for key, value in found.items()))
    if isinstance(found, tuple | list):
        return tuple(normal(each) for each in found)
    return found


def difference(ours: Outcome, sparks: Outcome, *, ordered: bool, names: Sequence[str | None] | None = None) -> str:
    """The kind of the difference; empty if there is none."""
    if ours.rows is None and sparks.rows is None:
        if sparks.planned and ours.planned:
            return ""
        return "" if ours.error == sparks.error else f"errors: {ours.error} instead of {sparks.error}"
    if ours.rows is None:
        return f"refused: {_gist(ours.message)}" if ours.planned else f"error: {ours.error} {_gist(ours.message)}"
    if sparks.rows is None:
        return f"no error: {sparks.error}"
    if sparks.types and ours.types != sparks.types:
        return "types of columns"
    if names is not None and any(wanted not in (None, name) for wanted, name in zip(names, ours.names, strict=True)):
        return "names of columns"
    if ordered and ours.rows != sparks.rows:
        return "order of rows" if sorted(ours.rows, key=repr) == sorted(sparks.rows, key=repr) else "rows"
    return "" if sorted(ours.rows, key=repr) == sorted(sparks.rows, key=repr) else "rows"


def _gist(message: str) -> str:
    """A message without the parts that differ between queries."""
    text = re.sub(r"'[^']*'|`[^`]*`|\"[^\"]*\"", "_", message)
    return re.sub(r"\b(line|column) \d+|\d+|\b(d|v)?same_\w+", "_", text)[:160]
