"""Reads the header Retry-After of a service, for `RetryableError(retry_after=...)` and `Failure(retry_after=...)`."""

import datetime
import email.utils

__all__ = ["retry_after_seconds"]


def retry_after_seconds(text: str | None, now: float) -> float | None:
    """Return the seconds to wait after a Retry-After header: a number of seconds or a date (RFC 9110 section 10.2.3).

    Args:
        text: The value of the header; None if there is none.
        now: The time of day, in seconds since 1970.

    Returns:
        At least 0; None for no header or an invalid one.
    """
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return float(text)
    try:
        date = email.utils.parsedate_to_datetime(text)
        # A date without a zone, as in asctime's format, or with the zone -0000 is in UTC (RFC 9110 section 5.6.7).
        return max((date if date.tzinfo else date.replace(tzinfo=datetime.UTC)).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return None
