"""Times of process table functions: microseconds internally, milliseconds or datetimes for authors."""

import datetime
from typing import Any

__all__ = ["MAX_TIME", "from_author", "to_author"]

MAX_TIME = 2**63 - 1
"""The watermark after the end of a bounded input, in every unit."""
_LARGEST = MAX_TIME // 1000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIRST = datetime.datetime.min.replace(tzinfo=datetime.UTC)
_LAST = datetime.datetime.max.replace(tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def to_author(time: int | None, kind: type) -> Any:
    """Convert a time to milliseconds (int) or an aware datetime in UTC, which has the years 1 to 9999 only."""
    if time is None:
        return None
    if kind is int:
        return MAX_TIME if time == MAX_TIME else time // 1000
    try:
        return _EPOCH + datetime.timedelta(microseconds=time)
    except OverflowError:
        # The watermark at the end of a bounded input, for example.
        return _LAST if time > 0 else _FIRST


def from_author(time: str | int | datetime.datetime) -> int:
    """Convert milliseconds since 1970, or a datetime (in UTC if without a zone), to microseconds. Raises TypeError."""
    if type(time) is int and -_LARGEST <= time <= _LARGEST:
        return time * 1000
    if isinstance(time, datetime.datetime):
        aware = time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)
        return (aware - _EPOCH) // _MICROSECOND
    if not isinstance(time, int) or isinstance(time, bool):
        raise TypeError(f"a time is milliseconds since 1970 or a datetime, not {time!r}")
    # Times that do not fit into 64 bits as microseconds become the end of time.
    return max(min(time * 1000, MAX_TIME), -MAX_TIME)
