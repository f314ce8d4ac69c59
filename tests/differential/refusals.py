"""The documented limitations: what remote-udf rejects although Spark supports it. Other rejections are differences."""

import re

__all__ = ["accepted"]

DOCUMENTED: tuple[tuple[str, str], ...] = (
    ("first ORDER BY column must be ascending", "process functions take rows by ascending time (FLIP-440)"),
    (
        "type .*(variant|interval year to month).* cannot be sent to a remote function",
        "variants and months are not sent",
    ),
    ("is not supported where rows are compared", "text with a collation is not compared"),
    ("in QUALIFY is ambiguous: a column, and an item", "a name in QUALIFY is a column or an item"),
    ("remote aggregate \\S+ cannot be used here", "no remote aggregate in PIVOT or a recursive query"),
    ("cannot refer to outer columns", "no remote aggregate in a correlated subquery"),
    ("cannot be planned beside the pipe syntax", "no remote aggregate in the pipe syntax"),
    ("is run in pieces: give its parameters names", "positional parameters are Spark's alone"),
)
"""A pattern of the message, and the limitation that it states."""


def accepted(message: str) -> str:
    """The limitation that the message states; empty if it is not documented."""
    return next((reason for pattern, reason in DOCUMENTED if re.search(pattern, message)), "")
