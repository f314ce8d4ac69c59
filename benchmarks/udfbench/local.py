"""PySpark's own UDFs, UDTFs and pandas aggregates with the same bodies, registered with the prefix `own_`."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from benchmarks.udfbench import logic

__all__ = ["PREFIX", "register_local"]

PREFIX = "own_"
_TYPES = {"int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(), "string": pa.string()}


def register_local(spark: SparkSession) -> None:
    """Registers them all: Arrow UDFs of whole batches, which Spark fuses, UDTFs, and grouped pandas aggregates."""
    for function, (_, returns) in logic.SCALARS.items():
        spark.udf.register(PREFIX + function.__name__, _scalar(function, returns))
    tables = {name: (_table(body, columns), returns) for name, (body, columns, returns) in _TABLES.items()}
    tables |= {name: (_collecting(body), returns) for name, (body, returns) in _OF_ALL_ROWS.items()}
    tables["read_file"] = (_ReadFile, "line string")
    for name, (made, returns) in tables.items():
        spark.udtf.register(PREFIX + name, F.udtf(made, returnType=returns))  # type: ignore[arg-type]
    _register_aggregates(spark)


class _ReadFile:
    def eval(self, path: str) -> Iterator[tuple[str]]:
        yield from logic.read_file(path)


def _scalar(function: Callable[..., Any], returns: str) -> Any:
    def one(x: pa.Array) -> pa.Array:
        return pa.array(list(map(function, x.to_pylist())), _TYPES[returns])

    def two(x: pa.Array, y: pa.Array) -> pa.Array:
        return pa.array(list(map(function, x.to_pylist(), y.to_pylist())), _TYPES[returns])

    return F.arrow_udf(two if "," in logic.SCALARS[function][0] else one, returns)  # type: ignore[call-overload]


_TABLES: dict[str, tuple[Callable[..., Any], int, str]] = {
    "date_parts": (logic.date_parts, 2, "id string, day int, month int, year int"),
    "pairs_of": (logic.pairs_of, 2, "id string, pair string"),
    "words_of": (logic.words_of, 2, "id string, word string"),
    "records_of_json": (logic.records_of_json, 1, "doi string, funding string"),
    "records_of_xml": (logic.records_of_xml, 1, "doi string, funding string"),
}
"""The table functions of one row: body, number of columns that it reads, result."""

_OF_ALL_ROWS: dict[str, tuple[Callable[..., Any], str]] = {
    "clusters": (logic.clusters, "id string, cluster int"),
    "top_five": (logic.top_five, "one string, other string, score double"),
    "pivoted": (logic.pivoted, "key string, publications int, datasets int, software int"),
}
"""The table functions of all rows of a key. PySpark has no aggregate UDF whose value is an array or a struct."""


def _table(function: Callable[..., Iterator[tuple[Any, ...]]], columns: int) -> type:
    class Table:
        def eval(self, row: Row) -> Iterator[tuple[Any, ...]]:
            yield from function(*row[:columns])

    return Table


def _collecting(function: Callable[..., Any]) -> type:
    class Collecting:
        def __init__(self) -> None:
            self._rows: list[Row] = []

        def eval(self, row: Row) -> None:
            self._rows.append(row)

        def terminate(self) -> Iterator[tuple[Any, ...]]:
            columns = list(zip(*self._rows, strict=True))
            if not columns:
                return
            if function is logic.pivoted:
                yield (columns[0][0], *function(columns[1]))
            else:
                yield from function(*columns[: function.__code__.co_argcount])

    return Collecting


def _register_aggregates(spark: SparkSession) -> None:
    def mean_of(x: pd.Series) -> float:
        return float(x.mean())

    def middle(x: pd.Series) -> float:
        return float(x.median())

    def latest(x: pd.Series) -> str:
        return str(x.max())

    def summary(x: pd.Series) -> str:
        return logic.summary(x.tolist())

    for function, returns in ((mean_of, "double"), (middle, "double"), (latest, "string"), (summary, "string")):
        made = F.pandas_udf(function, returns)  # type: ignore[call-overload]
        spark.udf.register(PREFIX + function.__name__, made)
