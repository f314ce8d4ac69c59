"""What remote-udf refuses although Spark can do it: the documented refusals. Another one is a difference."""

import re

__all__ = ["accepted"]

DOCUMENTED: tuple[tuple[str, str], ...] = (
    ("first ORDER BY column must be ascending", "process functions take rows by ascending time (FLIP-440)"),
    ("a RANGE frame with offsets has nulls first", "frames of values have nulls where Spark has them by default"),
)
"""A pattern of the message, and the limitation it states."""


def accepted(message: str) -> str:
    """The limitation that the message states; empty if it is none that is documented."""
    return next((reason for pattern, reason in DOCUMENTED if re.search(pattern, message)), "")
