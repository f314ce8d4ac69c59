"""What remote-udf refuses although Spark can do it: the documented refusals. Another one is a difference."""

import re

__all__ = ["accepted"]

DOCUMENTED: tuple[tuple[str, str], ...] = (
    ("first ORDER BY column must be ascending", "process functions take rows by ascending time (FLIP-440)"),
)
"""A pattern of the message, and the limitation it states."""


def accepted(message: str) -> str:
    """The limitation that the message states; empty if it is none that is documented."""
    return next((reason for pattern, reason in DOCUMENTED if re.search(pattern, message)), "")
