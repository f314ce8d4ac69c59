"""What holds while a query is planned: a setting is read once, and an error about another frame's column says so.

Each question to the JVM is a round trip, and a query asks for the same settings in many places.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_client.base.errors import PlanError
from spark_client.base.root_cause import OTHER_FRAME, OTHER_FRAME_HINT, UNKNOWN_VALUE

__all__ = ["planning", "read_once"]

Value = TypeVar("Value")

_values: ContextVar[dict[tuple[SparkSession, Callable[..., Any]], Any] | None] = ContextVar("settings", default=None)


@contextmanager
def planning() -> Iterator[None]:
    """Plan one query: until the end of the block or of the decorated function `read_once` reads each setting once.

    Raises PlanError in place of Spark's error about a column of another frame, or about a remote aggregate.
    """
    if _values.get() is not None:
        yield
        return
    token = _values.set({})
    try:
        yield
    except AnalysisException as error:
        if (value := UNKNOWN_VALUE.search(str(error))) is not None:
            raise PlanError(value[1]) from None
        if (found := OTHER_FRAME.search(str(error))) is None:
            raise
        name = (found[1] or found[2]).replace("`", "").split(",")[0]
        raise PlanError(f"column {name!r}: {OTHER_FRAME_HINT.format(name)}") from None
    finally:
        _values.reset(token)


def read_once(spark: SparkSession, read: Callable[[SparkSession], Value]) -> Value:
    """Return `read(spark)`. Inside `planning`, `read` is called once for each session."""
    values = _values.get()
    if values is None:
        return read(spark)
    key = (spark, read)
    if key not in values:
        values[key] = read(spark)
    value: Value = values[key]
    return value
