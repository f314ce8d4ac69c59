"""Reads the header Retry-After of a service, for `RetryableError(retry_after=...)` and `Failure(retry_after=...)`."""

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
        return max(email.utils.parsedate_to_datetime(text).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return None
