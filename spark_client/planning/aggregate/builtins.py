"""Spark's own aggregates that can be told apart: where they are computed otherwise than by Spark's groupBy.

A Column does not show what it holds but in its text. So an aggregate is known if its text is `name(column)`
with a column of the frame, which `F.sum("price")` and `F.expr("count(DISTINCT user)")` are; an argument that is
computed needs a column of its own first.
"""

import re
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.changelogs import CHANGE_TYPE
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, identifiers_of, quoted
from spark_client.planning.key_columns import normalized

__all__ = ["KNOWN", "Builtin", "is_distinct", "known_builtin", "of_stream", "over_signs"]

KNOWN = ("count", "sum", "avg", "min", "max")
"""Names; each also of distinct values."""
_ALIASES = {"mean": "avg"}
_TEXT = re.compile(r"(\w+)\(((?:distinct )?)(.*)\)(?: AS (.+))?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Builtin:
    """`column` is the name of the argument; None for count(*), which counts rows. `type` is Spark's for the result."""

    function: str
    column: str | None
    distinct: bool
    name: str
    type: T.DataType
    argument: T.DataType | None

    @property
    def needs_values(self) -> bool:
        """Whether it must know all values to retract one."""
        return self.distinct or self.function in ("min", "max")


def known_builtin(frame: DataFrame, aggregate: Column, why: str) -> Builtin:
    """What the aggregate is. Raises PlanError, which says `why` it must be known."""
    text = _text(frame, aggregate)
    match = _TEXT.fullmatch(text)
    result = frame.groupBy().agg(aggregate).schema.fields[0]
    function = "" if match is None else _ALIASES.get(match[1].lower(), match[1].lower())
    if match is None or function not in KNOWN:
        raise PlanError(
            f"{why} of Spark's own aggregates only {', '.join(KNOWN)} of a column are supported, not {text}"
        )
    distinct, inner = bool(match[2]), match[3]
    if function == "count" and not distinct and (inner == "*" or inner.isdigit()):
        return Builtin(function, None, False, result.name, result.dataType, None)
    identifiers = identifiers_of(frame)
    # Names with odd characters are in backticks where the argument is written as SQL.
    found = [
        field
        for field in frame.schema.fields
        if identifiers.key(inner) in identifiers.keys([field.name, quoted(field.name)])
    ]
    if len(found) != 1 or found[0].name.lower() == CHANGE_TYPE:
        raise PlanError(f"{why} the argument of {text} must be one column of the frame; add it with withColumn first")
    # Of distinct values the smallest is the smallest of all.
    distinct = distinct and function not in ("min", "max")
    return Builtin(function, found[0].name, distinct, result.name, result.dataType, found[0].dataType)


def is_distinct(frame: DataFrame, aggregate: Column) -> bool:
    """Whether the aggregate is of distinct values, by its text; False for what is not of the frame alone."""
    try:
        match = _TEXT.fullmatch(_text(frame, aggregate))
    except AnalysisException:
        return False  # Spark says what is wrong with it, if anything is
    return match is not None and bool(match[2])


def over_signs(builtin: Builtin, sign: Column) -> Column:
    """The aggregate over rows that are added (sign 1) and retracted (-1); for `needs_values`, of net rows.

    What is retracted and never came counts below zero.
    """
    if builtin.column is None:
        return F.sum(sign.cast("bigint")).alias(builtin.name)
    column = column_named(builtin.column)
    present = F.when(column.isNotNull(), sign.cast("bigint"))
    if builtin.distinct:
        return _of_distinct(builtin, F.when(sign > 0, column))
    if builtin.function in ("min", "max"):
        return {"min": F.min, "max": F.max}[builtin.function](F.when(sign > 0, column)).alias(builtin.name)
    count = F.coalesce(F.sum(present), F.lit(0))
    if builtin.function == "count":
        return count.cast("bigint").alias(builtin.name)
    signed = F.when(sign < 0, -column).otherwise(column)
    total = F.when(count != 0, F.sum(signed))
    value = total if builtin.function == "sum" else total / count
    return value.cast(builtin.type).alias(builtin.name)


def of_stream(builtin: Builtin) -> Column:
    """The same aggregate as Spark's streams have it, which know no DISTINCT: by a set of the values."""
    assert builtin.column is not None
    return _of_distinct(builtin, column_named(builtin.column))


def _of_distinct(builtin: Builtin, value: Column) -> Column:
    assert builtin.argument is not None
    values = F.collect_set(normalized(value, builtin.argument))
    count = F.size(values)
    if isinstance(builtin.argument, (T.StructType, T.ArrayType)):
        # Equal structs and arrays may stay in the set where Spark's hash aggregation falls back to sorting.
        ordered = F.array_sort(values)
        others = F.slice(ordered, 2, F.greatest(count, F.lit(1)))
        ends = F.zip_with(ordered, others, lambda one, other: ~one.eqNullSafe(other))
        count = F.size(F.filter(ends, lambda end: end))
    if builtin.function == "count":
        return count.cast("bigint").alias(builtin.name)
    start = F.lit(0).cast(builtin.type)
    total = F.aggregate(values, start, lambda one, other: (one + other).cast(builtin.type))
    summed = F.when(count != 0, total if builtin.function == "sum" else total / count)
    return summed.cast(builtin.type).alias(builtin.name)


def _text(frame: DataFrame, aggregate: Column) -> str:
    """The aggregate with its alias, as Spark understands it: a Column's own text leaves DISTINCT out."""
    return frame.groupBy().agg(aggregate.isNull()).columns[0].removeprefix("(").removesuffix(" IS NULL)")
