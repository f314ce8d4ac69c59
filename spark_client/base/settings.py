"""What holds while a query is planned: a setting is read once, and an error about another frame's column says so.

Each question to the JVM is a round trip, and a query asks for the same settings in many places.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from spark_client.base.errors import PlanError
from spark_client.base.root_cause import OTHER_FRAME, OTHER_FRAME_HINT, UNKNOWN_VALUE

__all__ = ["all_settings", "planning", "read_once", "reads_stream"]

Value = TypeVar("Value")
AskedT = TypeVar("AskedT", SparkSession, DataFrame)

_values: ContextVar[dict[tuple[object, Callable[..., Any]], Any] | None] = ContextVar("settings", default=None)

_BETWEEN, _ARROW = f"\n{uuid.uuid4().hex}\n", " -> "
"""What is between the entries of a Scala map as text, which no setting contains, and between a key and its value."""


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


def read_once(asked: AskedT, read: Callable[[AskedT], Value]) -> Value:
    """Return `read(asked)`. Inside `planning`, `read` is called once for each session or frame."""
    values = _values.get()
    if values is None:
        return read(asked)
    key = (asked, read)
    if key not in values:
        values[key] = read(asked)
    value: Value = values[key]
    return value


def reads_stream(frame: DataFrame) -> bool:
    """Whether the rows of a frame are those of a stream."""
    return read_once(frame, _is_streaming)


def _is_streaming(frame: DataFrame) -> bool:
    return frame.isStreaming


def all_settings(spark: SparkSession) -> dict[str, str]:
    """Return every setting of the session, as it is now.

    This is the only place that uses what PySpark does not document: the map of the JVM as one text takes two commands,
    where PySpark converts it entry by entry, in over a hundred. If it is not there, PySpark's own way is used.
    """
    try:
        entries = spark.conf._jconf.getAll().mkString(_BETWEEN).split(_BETWEEN)  # noqa: SLF001
        # A text that contains an arrow leaves open where the key ends.
        return {key: value for key, value in (entry.split(_ARROW) for entry in entries)}  # noqa: C416
    except Exception:  # anything may be missing: on Spark Connect, in another PySpark, in another Scala
        return spark.conf.getAll
