"""Operators: what runs over Arrow batches in Spark's Python workers, and the columns that go in and come out.

An operator is a function of a plan and an iterator of batches that yields batches. Spark runs it by `mapInArrow`, which
pickles the plan with it. `mapInArrow` finds columns by the text of their names. So columns whose names might have a dot
or a backtick, or be those of others, have hidden names while an operator runs, and get their own afterwards.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructField, StructType

from spark_client.base.identifiers import hidden
from spark_client.planning.passed_columns import map_in_arrow

__all__ = ["Batches", "OutputField", "apply_operator", "hidden_schema", "with_hidden_names"]

Plan = TypeVar("Plan")
Batches = Iterator[pa.RecordBatch]


class OutputField(NamedTuple):
    """A column of a result: its name, whatever that is, its type, and Spark's metadata of it."""

    name: str
    type: DataType
    metadata: Mapping[str, object] = {}


def with_hidden_names(frame: DataFrame, width: int | None = None) -> DataFrame:
    """The frame with its first `width` columns under hidden names by position; all of them without a width."""
    names = frame.columns
    width = len(names) if width is None else width
    return frame.toDF(*(hidden(index) for index in range(width)), *names[width:])


def hidden_schema(fields: Sequence[OutputField]) -> StructType:
    """Types and metadata of the fields, under hidden names by position. Every column may hold nulls."""
    return StructType([
        StructField(hidden(index), field.type, True, dict(field.metadata)) for index, field in enumerate(fields)
    ])  # fmt: skip


def apply_operator(
    frame: DataFrame,
    run: Callable[[Plan, Batches], Batches],
    plan: Plan,
    schema: StructType | str,
    names: Sequence[str] | None = None,
) -> DataFrame:
    """The rows that the operator makes of those of `frame`.

    Args:
        frame: The input. The text of each name is that of one column; see `with_hidden_names`.
        run: Yields batches whose columns are named as in `schema`.
        plan: What `run` is called with, once per task. It is pickled.
        schema: What comes out.
        names: Other names for the columns of `schema`, in the same order.

    """

    def operate(batches: Batches) -> Batches:
        return run(plan, batches)

    result = map_in_arrow(frame, operate, schema)
    return result if names is None else result.toDF(*names)
