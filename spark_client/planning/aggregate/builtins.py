"""Recognises Spark's own aggregates, for queries that compute them in another way than Spark's groupBy.

A Column reveals its contents only as text. So an aggregate is recognised if its text is `name(column)` with a
column of the frame, such as `F.sum("price")` or `F.expr("count(DISTINCT user)")`. A computed argument must be
added to the frame as a column first.
"""

import re
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.changelogs import CHANGE_TYPE
from spark_client.base.errors import PlanError
from spark_client.base.grouped import described
from spark_client.base.identifiers import column_named, identifiers_of, quoted
from spark_client.planning.key_columns import normalized, require_sorting

__all__ = ["KNOWN", "Builtin", "is_distinct", "known_builtin", "of_stream", "over_signs"]

KNOWN = ("count", "sum", "avg", "min", "max")
"""The functions that are recognised, with and without DISTINCT."""
_ALIASES = {"mean": "avg"}
_TEXT = re.compile(r"(\w+)\(((?:distinct )?)(.*)\)(?: AS (.+))?", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Builtin:
    """`column` is the name of the argument, None for count(*). `type` is Spark's type of the result."""

    function: str
    column: str | None
    distinct: bool
    name: str
    type: T.DataType
    argument: T.DataType | None

    @property
    def needs_values(self) -> bool:
        """Whether retracting a value requires all other values of the group."""
        return self.distinct or self.function in ("min", "max")


def known_builtin(frame: DataFrame, aggregate: Column, why: str) -> Builtin:
    """Recognise the aggregate. Raises PlanError if it is not supported; the message starts with `why`."""
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
    # If the argument is written as SQL, unusual names are in backticks.
    found = [
        field
        for field in frame.schema.fields
        if identifiers.key(inner) in identifiers.keys([field.name, quoted(field.name)])
    ]
    if len(found) != 1 or found[0].name.lower() == CHANGE_TYPE:
        raise PlanError(f"{why} the argument of {text} must be one column of the frame; add it with withColumn first")
    argument = found[0].dataType
    if function in ("sum", "avg") and isinstance(argument, (T.TimestampType, T.TimestampNTZType, T.DateType)):
        raise PlanError(f"{why} {text} needs numbers, found {argument.simpleString()}; cast it with withColumn first")
    if distinct:
        require_sorting(argument, f"{why} {text}")
    # The minimum and maximum do not depend on repetitions.
    distinct = distinct and function not in ("min", "max")
    return Builtin(function, found[0].name, distinct, result.name, result.dataType, argument)


def is_distinct(frame: DataFrame, aggregate: Column) -> bool:
    """Whether the text of the aggregate has DISTINCT; False if the frame alone cannot resolve it."""
    try:
        match = _TEXT.fullmatch(_text(frame, aggregate))
    except AnalysisException:
        return False  # Spark reports the error when it runs the query
    return match is not None and bool(match[2])


def over_signs(builtin: Builtin, sign: Column) -> Column:
    """The aggregate over rows with a sign: 1 if added, -1 if retracted. If `needs_values`, the rows must be net rows.

    A row that is retracted but was never added counts as -1.
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
    total = F.when(count != 0, _signed_sum(column, sign, builtin.argument))
    value = total if builtin.function == "sum" else total / count
    return value.cast(builtin.type).alias(builtin.name)


def _signed_sum(column: Column, sign: Column, type_: T.DataType | None) -> Column:
    """The sum of the values, in which no retracted NaN or infinity remains."""
    signed = F.when(sign < 0, -column).otherwise(column)
    if not isinstance(type_, (T.FloatType, T.DoubleType)):
        return F.sum(signed)
    others = [F.lit(float(text)).cast("double") for text in ("nan", "inf", "-inf")]
    # These are counted, since inf - inf is NaN. Without a finite value the sum is that of the others.
    total = F.coalesce(F.sum(F.when(~column.isin(others), signed)), F.lit(0.0))
    for other in others:
        count = F.sum(F.when(column == other, sign))
        total += F.when(count != 0, count * other).otherwise(0.0)
    return total


def of_stream(builtin: Builtin) -> Column:
    """The same aggregate over a set of the values, because Spark's streams do not support DISTINCT."""
    assert builtin.column is not None
    return _of_distinct(builtin, column_named(builtin.column))


def _of_distinct(builtin: Builtin, value: Column) -> Column:
    assert builtin.argument is not None
    values = F.collect_set(normalized(value, builtin.argument))
    values = described(values, f"values {builtin.argument.simpleString()}")
    count = F.size(values)
    if isinstance(builtin.argument, (T.StructType, T.ArrayType)):
        # If Spark's hash aggregation falls back to sorting, the set may contain equal structs and arrays twice.
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
    """The text of the aggregate as Spark analyzes it, with its alias. The text of a Column omits DISTINCT."""
    return frame.groupBy().agg(aggregate.isNull()).columns[0].removeprefix("(").removesuffix(" IS NULL)")
