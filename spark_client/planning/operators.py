"""Operators: what runs over Arrow batches in Spark's Python workers, and the columns that go in and come out.

An operator is a function of a plan and an iterator of batches that yields batches. Spark runs it by `mapInArrow`,
which pickles the plan with it. `mapInArrow` finds columns by the text of their names, so names with a dot or a
backtick, or repeated names, are a problem. Therefore columns have hidden names while an operator runs, and get their
own names afterwards.
"""

import contextlib
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from remote_udf.options import OnError
from spark_client.base.calls import ScalarCall
from spark_client.base.identifiers import error_column, hidden
from spark_client.base.types import map_in_arrow, spark_type
from spark_client.executor.engine.policy import ERROR_TYPE
from spark_client.executor.scalar.rows import number_of, without_number
from spark_client.planning.scans import Batches, renamed, scan_of

__all__ = [
    "Batches", "OutputField", "apply_after_operator", "apply_operator", "output_schema", "value_fields",
    "with_hidden_names", "with_names",
]  # fmt: skip

Plan = TypeVar("Plan")


class OutputField(NamedTuple):
    """A column of a result: its name, which may be any string, its type, and its metadata in Spark."""

    name: str
    type: DataType
    metadata: Mapping[str, object] = {}


def with_hidden_names(frame: DataFrame, width: int | None = None) -> DataFrame:
    """The frame with its first `width` columns under hidden names by position; all of them without a width."""
    names = frame.columns
    width = len(names) if width is None else width
    return renamed(frame, *(hidden(index) for index in range(width)), *names[width:])


def output_schema(fields: Sequence[OutputField]) -> StructType:
    """The schema of an operator's output: the names of the fields if all differ, otherwise hidden names by position.

    Every column is nullable.
    """
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        names = [hidden(index) for index in range(len(names))]
    return StructType([
        StructField(name, field.type, True, dict(field.metadata)) for name, field in zip(names, fields, strict=True)
    ])  # fmt: skip


def value_fields(name: str, call: ScalarCall) -> list[OutputField]:
    """The column of a call's values, and that of its errors if on-error is `column`."""
    fields = [OutputField(name, spark_type(call.spec.result))]
    if call.policy.on_error is OnError.COLUMN:
        fields.append(OutputField(error_column(name), spark_type(ERROR_TYPE)))
    return fields


def apply_operator(
    frame: DataFrame,
    run: Callable[[Plan, Batches], Batches],
    plan: Plan,
    schema: StructType | str,
    names: Sequence[str] | None = None,
    calls: Sequence[str] = (),
    of_partition: Callable[[Plan, int | None], Plan] | None = None,
) -> DataFrame:
    """Apply an operator to the rows of `frame`.

    Args:
        frame: The input. The text of each name must identify one column; see `with_hidden_names`. If the frame has a
            scan, the operator reads the rows itself.
        run: Yields batches whose columns are named as in `schema`.
        plan: The argument of `run`, which is called once per task. It is pickled.
        schema: The schema of the result.
        names: Other names for the columns of `schema`, in the same order.
        calls: What the operator calls, for Spark's plan.
        of_partition: Makes the plan for a partition of the input, given its number, which is the same whenever the
            partition is computed. It is None for a partition without rows. Numbers may have gaps.

    """
    scan = scan_of(frame)
    # Workers get the reader alone, so that they import no planners.
    read = None if scan is None else scan.reader

    if read is None and of_partition is None:

        def operate(batches: Batches) -> Batches:
            return run(plan, batches)
    else:

        def operate(batches: Batches) -> Batches:
            number, rows = number_of(batches)
            own = plan if of_partition is None else of_partition(plan, number)
            return run(own, without_number(rows)) if read is None else read(partial(run, own), rows)

    operate.__name__ = f"operate[{', '.join(dict.fromkeys(calls))}]" if calls else "operate"
    source = frame if scan is None else scan.tasks(frame)
    if of_partition is not None and scan is None:
        source = frame.select("*", _number(frame).alias(hidden("partition")))
    result = map_in_arrow(source, operate, schema)
    _MADE[result] = _Made(source, operate)
    same = names is None or (isinstance(schema, StructType) and schema.names == list(names))
    return result if names is None or same else with_names(result, names)


def apply_after_operator(
    frame: DataFrame, run: Callable[[Plan, Batches], Batches], plan: Plan, schema: StructType | str
) -> DataFrame:
    """Like `apply_operator`, but if the frame is the result of an operator, both run in one worker.

    The rows of the first operator then do not pass through the JVM. `run` finds columns by their positions. The rows of
    a cached frame are taken from Spark, so that no call is made again.
    """
    made = _MADE.get(frame)
    if made is None or _cached(frame):
        return apply_operator(with_hidden_names(frame), run, plan, schema)
    first = made.operate

    def operate(batches: Batches) -> Batches:
        with contextlib.ExitStack() as cleanup:
            between = first(batches)
            if isinstance(between, Generator):
                # Streams of the first operator end also if the second one fails.
                cleanup.enter_context(contextlib.closing(between))
            yield from run(plan, between)

    return map_in_arrow(made.source, operate, schema)


def _number(frame: DataFrame) -> Column:
    """A column whose first value differs between the partitions of a frame."""
    # Spark's optimizer may compute columns of literal rows before it divides them into partitions. Then the id of the
    # partition is 0 in all of them. Streams have no literal rows, and no increasing ids.
    return F.spark_partition_id() if frame.isStreaming else F.monotonically_increasing_id()


def with_names(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Like `frame.toDF(*names)`; the result of an operator is still known as one."""
    result = frame.toDF(*names)
    if frame in _MADE:
        _MADE[result] = _MADE[frame]
    return result


def _cached(frame: DataFrame) -> bool:
    # `cache` returns the same object, so this is not known before the frame is used.
    level = frame.storageLevel
    return bool(level.useMemory or level.useDisk)


class _Made(NamedTuple):
    """The operator whose result a frame is, and its input."""

    source: DataFrame
    operate: Callable[[Batches], Batches]


_MADE: weakref.WeakKeyDictionary[DataFrame, _Made] = weakref.WeakKeyDictionary()
