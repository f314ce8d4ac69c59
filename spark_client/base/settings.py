"""Settings of the Spark session, read once while a query is planned.

PySpark converts a Java map entry by entry, so reading all settings takes over a hundred round trips to the JVM.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from pyspark.sql import SparkSession

__all__ = ["read_once", "settings_read_once"]

Value = TypeVar("Value")

_values: ContextVar[dict[tuple[SparkSession, Callable[..., Any]], Any] | None] = ContextVar("settings", default=None)


@contextmanager
def settings_read_once() -> Iterator[None]:
    """Make `read_once` read each setting only once until the end of the block or of the decorated function."""
    if _values.get() is not None:
        yield
        return
    token = _values.set({})
    try:
        yield
    finally:
        _values.reset(token)


def read_once(spark: SparkSession, read: Callable[[SparkSession], Value]) -> Value:
    """Return `read(spark)`. Inside `settings_read_once`, `read` is called once for each session."""
    values = _values.get()
    if values is None:
        return read(spark)
    key = (spark, read)
    if key not in values:
        values[key] = read(spark)
    value: Value = values[key]
    return value
