"""Translates conditions on the rows of a scan. Spark checks those on partition columns, workers check the others."""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import identifiers_of
from spark_client.parquet.scan import ScanColumn
from spark_client.sql.text.nodes import Node, conjuncts
from spark_client.sql.text.parsing import condition_of
from spark_client.sql.text.settings import parser_settings
from spark_client.sql.text.writers import canonical, written

__all__ = ["Conditions"]

_COMPARISONS: Mapping[type[Node], Callable[[Any, Any], pc.Expression]] = {
    exp.EQ: operator.eq, exp.NEQ: operator.ne, exp.GT: operator.gt, exp.GTE: operator.ge, exp.LT: operator.lt,
    exp.LTE: operator.le,
}  # fmt: skip
_TRUE_FOR_NAN = (exp.GT, exp.GTE, exp.NEQ)
_FLIPPED: Mapping[type[Node], type[Node]] = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE}
_MOST_VALUES = 200
"""The maximum number of values of IN."""
_EXACT_IN_FLOAT = 1 << 24


class Conditions:
    """A condition in SQL on the rows of Parquet files, in the parts that are joined by AND."""

    def __init__(self, spark: SparkSession, sql: str) -> None:
        """Raises PlanError if the text is no condition."""
        self.sql = sql
        self._spark = spark
        self._key = identifiers_of(spark).key
        try:
            self._parts = conjuncts(condition_of(sql, parser_settings(spark)))
        except PlanError as error:
            raise PlanError(f"read_parquet: filter: {error}") from None

    def of_files(self, partitions: Sequence[str]) -> list[str]:
        """The parts that refer to partition columns only."""
        return [written(part) for part in self._parts if self._is_of_files(part, partitions)]

    def of_rows(
        self, columns: Sequence[ScanColumn], partitions: Sequence[str]
    ) -> tuple[pc.Expression | None, tuple[int, ...]]:
        """The other parts, and the positions of the columns that they use. Raises PlanError for other conditions."""
        parts = [part for part in self._parts if not self._is_of_files(part, partitions)]
        translation = _Translation(self._spark, self._key, columns)
        expressions = [translation.condition(part) for part in parts]
        return (functools.reduce(operator.and_, expressions) if parts else None), tuple(translation.used)

    def _is_of_files(self, part: Node, partitions: Sequence[str]) -> bool:
        keys = set(map(self._key, partitions))
        used = [column.table or self._key(column.name) not in keys for column in part.find_all(exp.Column)]
        return bool(used) and not any(used)


class _Translation:
    """Translates conditions to expressions over columns of these names."""

    def __init__(self, spark: SparkSession, key: Callable[[str], str], columns: Sequence[ScanColumn]) -> None:
        self.used: dict[int, None] = {}
        self._spark = spark
        self._key = key
        self._columns = columns
        self._positions = {key(column.name): position for position, column in enumerate(columns)}

    def condition(self, tree: Node) -> pc.Expression:
        match tree:
            case exp.Paren():
                return self.condition(tree.this)
            case exp.And():
                return self.condition(tree.this) & self.condition(tree.expression)
            case exp.Or():
                return self.condition(tree.this) | self.condition(tree.expression)
            case exp.Not():
                return ~self.condition(tree.this)
            case exp.Is(expression=exp.Null()):
                field = self._field(tree.this, tree)
                # IS NOT NULL is a flag since sqlglot 30, and was a NOT before.
                return field.is_valid() if tree.args.get("negate") else field.is_null()
            case exp.Between(args={"low": low, "high": high}) if not tree.args.get("symmetric"):
                at_least, at_most = self._compared([exp.GTE, exp.LTE], tree.this, [low, high], tree)
                return at_least & at_most
            case exp.In(expressions=[_, *_]) if len(tree.expressions) <= _MOST_VALUES:
                # Not `isin`, by which a null is not in the list: in SQL that is unknown.
                kinds = [exp.EQ] * len(tree.expressions)
                return functools.reduce(operator.or_, self._compared(kinds, tree.this, tree.expressions, tree))
            case exp.Column() if self._column(tree, tree).type == pa.bool_():
                return self._field(tree, tree)
        if type(tree) not in _COMPARISONS:
            raise _refused(tree, "it is not a comparison of a column with a value")
        kind, column, value = type(tree), tree.this, tree.expression
        if isinstance(value, exp.Column) and not isinstance(column, exp.Column):
            kind, column, value = _FLIPPED.get(kind, kind), value, column
        return self._compared([kind], column, [value], tree)[0]

    def _compared(
        self, kinds: Sequence[type[Node]], column: Node, values: Sequence[Node], tree: Node
    ) -> list[pc.Expression]:
        """The comparisons of a column with values, each of the kind at its position."""
        found = self._column(column, tree)
        if not found.bytewise:
            raise _refused(tree, f"column {found.name!r} has a collation")
        computed = self._values(values, found.type, tree)
        return [_compared(kind, found, value) for kind, value in zip(kinds, computed, strict=True)]

    def _column(self, node: Node, tree: Node) -> ScanColumn:
        position = None
        if isinstance(node, exp.Column) and not node.table:
            position = self._positions.get(self._key(node.name))
        if position is None:
            raise _refused(tree, f"{canonical(node)} is not a column of the files")
        self.used[position] = None
        return self._columns[position]

    def _field(self, node: Node, tree: Node) -> pc.Expression:
        return pc.field(self._column(node, tree).name)

    def _values(self, nodes: Sequence[Node], type_: pa.DataType, tree: Node) -> list[pa.Scalar]:
        """The values as Spark computes them, in a type that is compared with the column as Spark compares them."""
        # The values are computed now, so they must be the same whenever the query runs.
        for node in nodes:
            computed = node.find_all(exp.Column, exp.Query, exp.Func)
            if any(not isinstance(each, exp.Cast) for each in computed):
                raise _refused(tree, f"{canonical(node)} is not a constant")
        texts = [written(node) for node in nodes]
        values = self._computed(texts)
        to = _TIMES.get(str(type_))
        cast = [i for i, value in enumerate(values) if pa.types.is_string(value.type) or pa.types.is_date(value.type)]
        if to is not None and cast:
            # Spark casts such a value to the type of the column.
            for i, value in zip(cast, self._computed([f"CAST({texts[i]} AS {to})" for i in cast]), strict=True):
                values[i] = value
        if not all(value.is_valid for value in values):
            raise _refused(tree, "a comparison with null is never true; write IS NULL")
        fitting = []
        for value in values:
            if (exact := _fitting(value, type_)) is None:
                raise _refused(tree, f"a value of type {value.type} is compared with a column of type {type_}")
            fitting.append(exact)
        return fitting

    def _computed(self, texts: Sequence[str]) -> list[pa.Scalar]:
        """The values of expressions, by one query."""
        items = ", ".join(f"{text} AS value_{i}" for i, text in enumerate(texts))
        return [column[0] for column in self._spark.sql(f"SELECT {items}").toArrow().columns]


def _compared(kind: type[Node], column: ScanColumn, value: pa.Scalar) -> pc.Expression:
    field = pc.field(column.name)
    compared = _COMPARISONS[kind](field, value)
    if not pa.types.is_floating(column.type):
        return compared
    # For Spark, NaN is larger than any other number. Statistics of row groups ignore it, so it is always checked.
    return compared | pc.is_nan(field) if kind in _TRUE_FOR_NAN else compared & ~pc.is_nan(field)


_TIMES: Mapping[str, str] = {
    "date32[day]": "DATE", "timestamp[us, tz=UTC]": "TIMESTAMP", "timestamp[us]": "TIMESTAMP_NTZ",
}  # fmt: skip
"""The types of columns to which Spark casts texts and dates."""


def _fitting(value: pa.Scalar, type_: pa.DataType) -> pa.Scalar | None:
    """The value in a type in which the comparison is exact; None if there is none."""
    found = value.type
    if found == type_:
        return None if pa.types.is_floating(type_) and value.as_py() != value.as_py() else value
    if pa.types.is_timestamp(type_) and pa.types.is_timestamp(found):
        return value.cast(type_) if (type_.tz is None) == (found.tz is None) else None
    if pa.types.is_floating(type_):
        if pa.types.is_integer(found) and (type_ == pa.float64() or abs(value.as_py()) <= _EXACT_IN_FLOAT):
            return value.cast(pa.float64(), safe=False)
        return value.cast(pa.float64()) if pa.types.is_decimal(found) or pa.types.is_floating(found) else None
    exact = pa.types.is_integer(found) or pa.types.is_decimal(found)
    if exact and pa.types.is_decimal(type_):
        return _in(Decimal(value.as_py()), type_)
    if pa.types.is_integer(found) and pa.types.is_signed_integer(type_):
        # A value that no row can have is compared as a long.
        same = _in(value.as_py(), type_)
        return value.cast(pa.int64()) if same is None else same
    return None


def _in(value: int | Decimal, type_: pa.DataType) -> pa.Scalar | None:
    """The value in that type; None if the type does not have it."""
    try:
        return pa.scalar(value, type_)
    except pa.ArrowInvalid:
        return None


def _refused(tree: Node, why: str) -> PlanError:
    return PlanError(
        f"read_parquet: workers cannot check the condition {canonical(tree)}: {why}. Use `where` on the "
        "DataFrame, for which Spark reads the files"
    )
