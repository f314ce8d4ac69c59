"""Lengths of windows: text such as "10 minutes", or a timedelta, converted to whole microseconds."""

from datetime import timedelta
from decimal import Decimal

from pyspark.sql import Column
from pyspark.sql import functions as F

from remote_udf.durations import parse_seconds
from remote_udf.errors import InvalidOption
from spark_client.base.errors import PlanError

__all__ = ["MILLISECOND", "Interval", "interval_column", "micros_of", "shown"]

Interval = timedelta | str

MILLISECOND = 1000
"""Microseconds of the shortest length, because window_time is a millisecond before the end (FLIP-145)."""

_LONGEST_DAYS = 100_000
"""An upper limit: Spark's intervals overflow after 106,751,991 days."""


def micros_of(length: Interval, what: str) -> int:
    """Microseconds, a multiple of MILLISECOND; negative for "-1 second". `what` names the argument in errors.

    Raises PlanError if it is not a length of days, hours, minutes, seconds or milliseconds. Months and years have
    no fixed length.
    """
    if isinstance(length, timedelta):
        micros = length // timedelta(microseconds=1)
    elif isinstance(length, str):
        micros = _parsed(length, what)
    else:
        raise PlanError(f"{what} {length!r} is not an interval: a timedelta or text such as '10 minutes'")
    if micros % MILLISECOND:
        raise PlanError(f"{what} {length!r} is not a whole number of milliseconds, the resolution of windows")
    if abs(micros) > _LONGEST_DAYS * 86_400_000_000:
        raise PlanError(f"{what} {length!r} is longer than {_LONGEST_DAYS:,} days")
    return micros


def _parsed(text: str, what: str) -> int:
    number = text.strip()
    sign = -1 if number.startswith("-") else 1
    try:
        seconds = parse_seconds(number.lstrip("-+"))
    except InvalidOption:
        raise PlanError(
            f"{what} {text!r} is not an interval of days, hours, minutes, seconds or milliseconds, such as '10 minutes'"
        ) from None
    # Floating point numbers keep 15 digits: enough for milliseconds of the longest interval.
    return sign * int(Decimal(f"{seconds:.15g}") * 1_000_000)


def interval_column(micros: int) -> Column:
    """The interval as a literal of Spark's that depends on neither time zone nor calendar."""
    sign = "-" if micros < 0 else ""
    seconds, rest = divmod(abs(micros), 1_000_000)
    return F.expr(f"interval '{sign}{seconds}.{rest:06}' second")


def shown(micros: int) -> str:
    """The form for error messages: `600000 ms`."""
    return f"{micros // MILLISECOND} ms"
