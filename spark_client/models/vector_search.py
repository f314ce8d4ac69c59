"""`LATERAL TABLE(VECTOR_SEARCH(TABLE docs, DESCRIPTOR(v), q.v, 3))`: the rows with the most similar vectors (FLIP-540).

The searched table is read when the query is planned, as for a broadcast join, and every Spark worker compares all of
its vectors. The call becomes one of a temporary function that returns an array of rows, so the other side may be a
table or a stream.
"""

import hashlib

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, NumericType, StructField, StructType
from sqlglot import exp

from spark_client.base.errors import InvalidVector, PlanError
from spark_client.base.identifiers import hidden, quoted
from spark_client.models.nearest import Nearest, numbers_of
from spark_client.sql.rows.flink_options import configured
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.stream_times import without_time
from spark_client.sql.rows.table_calls import by_name, described, evaluated, one_column, plain_table
from spark_client.sql.text.nodes import Node
from spark_client.windows.netting import ARRIVAL, changes_of, settled

__all__ = ["put_search"]

_NAME = "VECTOR_SEARCH"
MOST_BYTES = 100 << 20
"""Maximum size of a searched table, in Arrow's format: it is part of the plan, and Connect takes plans of 128 MB."""
_PARAMETERS = ("SEARCH_TABLE", "COLUMN_TO_SEARCH", "COLUMN_TO_QUERY", "TOP_K", "CONFIG")


def put_search(scope: Scope, node: Node, call: exp.Anonymous) -> None:
    """Replace a call by one of a function of Spark's."""
    given = by_name(call, _PARAMETERS, ("CONFIG",))
    configured(scope, _NAME, given.get("CONFIG"))  # nothing waits here, so the options have no effect
    # Releases of Flink differ in the order of these two; only one of them is a DESCRIPTOR.
    if described(given["COLUMN_TO_SEARCH"]) is None and described(given["COLUMN_TO_QUERY"]) is not None:
        given["COLUMN_TO_SEARCH"], given["COLUMN_TO_QUERY"] = given["COLUMN_TO_QUERY"], given["COLUMN_TO_SEARCH"]
    table = plain_table(call, "SEARCH_TABLE", given)
    column = one_column(_NAME, "COLUMN_TO_SEARCH", given["COLUMN_TO_SEARCH"])
    most = evaluated(scope, given["TOP_K"], pa.int32())
    if not isinstance(most, int) or isinstance(most, bool) or not 0 < most < 1 << 31:
        raise PlanError(f"{_NAME}: TOP_K is a positive number, not {most!r}")
    frame = _settled(without_time(scope.run(table)))
    name, rows = _registered(scope, frame, column)
    search = exp.Anonymous(this=name, expressions=[given["COLUMN_TO_QUERY"].copy(), exp.Literal.number(most)])
    node.set("this", exp.Anonymous(this="inline", expressions=[search]))
    scope.stages.append(f"{_NAME}: {rows} rows, read now, are compared in Spark's workers")


def _settled(frame: DataFrame) -> DataFrame:
    """The rows that remain after a changelog, in the order of their arrival; any other frame unchanged."""
    kind = None if frame.isStreaming else changes_of(frame, None, f"{_NAME}: SEARCH_TABLE")
    return frame if kind is None else settled(frame, kind).sort(ARRIVAL).drop(ARRIVAL)


def _registered(scope: Scope, frame: DataFrame, column: str) -> tuple[str, int]:
    """Register the search of a table as a function; return its name and the number of rows."""
    identifiers = scope.identifiers
    position = next((at for at, name in enumerate(frame.columns) if identifiers.same(name, column)), None)
    if frame.isStreaming:
        raise PlanError(f"{_NAME}: SEARCH_TABLE is a stream; a stream can be searched from, but not searched")
    if position is None:
        raise PlanError(f"{_NAME}: SEARCH_TABLE has no column {column!r}; it has {', '.join(frame.columns)}")
    type_ = frame.schema.fields[position].dataType
    if not isinstance(type_, ArrayType) or not isinstance(type_.elementType, NumericType):
        raise PlanError(f"{_NAME}: column {column!r} is {type_.simpleString()}; an array of numbers is expected")
    if twice := sorted({name for name in frame.columns if frame.columns.count(name) > 1}):
        raise PlanError(f"{_NAME}: SEARCH_TABLE has several columns {twice[0]!r}; give each one its own name")
    try:
        rows = frame.where(F.col(quoted(column)).isNotNull()).toArrow()
    except PySparkTypeError as error:
        raise PlanError(f"{_NAME}: SEARCH_TABLE has a column that cannot be sent to workers: {error}") from None
    if rows.nbytes > MOST_BYTES:
        raise PlanError(
            f"{_NAME}: SEARCH_TABLE has {rows.nbytes >> 20} MB, at most {MOST_BYTES >> 20} MB are searched in Spark: "
            "select fewer columns, or call a function that asks a vector database"
        )
    try:
        numbers_of(rows.column(position).combine_chunks(), "the searched table")
    except InvalidVector as error:
        raise PlanError(str(error)) from None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    score = identifiers.free("score", identifiers.keys(frame.columns))
    nearest = Nearest(sink.getvalue().to_pybytes(), position, score)
    fields = [*frame.schema.fields, StructField(score, DoubleType())]

    def search(vectors: pa.Array, most: pa.Array) -> pa.Array:
        return nearest.search(vectors, most[0].as_py()) if len(vectors) else nearest.search(vectors, 0)

    # Under a name of its content, because on Connect a DataFrame finds its functions only when it runs.
    digest = hashlib.sha256(nearest.rows)
    digest.update(repr((position, fields)).encode())
    name = hidden(f"search_{digest.hexdigest()[:16]}")
    # Spark's overloads have no type for a function of two arrays with an ArrayType.
    function = F.arrow_udf(search, ArrayType(StructType(fields)))  # type: ignore[call-overload]
    scope.spark.udf.register(name, function)
    return name, rows.num_rows
