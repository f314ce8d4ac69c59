"""Blanks comments, so that words with a comment between them are read as one keyword: GROUP /* by what */ BY."""

import re

__all__ = ["without_comments"]

_PIECE = re.compile(
    r"""
    (?<!\w)[rR]'[^']*' | (?<!\w)[rR]"[^"]*"                       # raw strings
    | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*`
    | /\*\+                                                       # a hint is no comment
    | (?P<line>--(?:\\\n|[^\r\n])*)
    | (?P<begin>/\*)
    """,
    re.VERBOSE | re.DOTALL,
)
_ENDS = re.compile(r"/\*|\*/")


def without_comments(sql: str) -> str:
    """The text with blanks in place of comments; positions and lines stay. A comment that does not end stays."""
    pieces, at = [], 0
    while (found := _PIECE.search(sql, at)) is not None:
        stop = found.end()
        if found["begin"]:
            stop = _end_of_comment(sql, stop)
        text = sql[found.start() : stop]
        is_comment = found["line"] or (found["begin"] and text.endswith("*/"))
        pieces += [sql[at : found.start()], re.sub(r"[^\r\n]", " ", text) if is_comment else text]
        at = stop
    return "".join([*pieces, sql[at:]])


def _end_of_comment(sql: str, at: int) -> int:
    """The end of a comment that may contain others."""
    depth = 1
    while depth and (found := _ENDS.search(sql, at)) is not None:
        depth += 1 if found[0] == "/*" else -1
        at = found.end()
    return len(sql) if depth else at
