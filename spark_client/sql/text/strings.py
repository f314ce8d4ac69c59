"""Values of the texts of a query, such as 'it''s', as Spark reads them with the settings of its session."""

import re

from spark_client.sql.text.settings import ParserSettings

__all__ = ["value_of"]

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([01][0-7]{2})|(.))", re.DOTALL)
_MEANINGS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def value_of(written: str, settings: ParserSettings) -> str:
    """The value of one text with its quotes."""
    if settings.escaped:
        return written[1:-1]  # Spark drops the r of r'a', and keeps its first quote
    if written[0] in "rR":
        return written[2:-1].replace(written[1] * 2, "")
    quote = written[0]
    # A quote after a backslash is not one of two.
    parts = re.split(r"(\\.)", written[1:-1], flags=re.DOTALL)
    doubled = "" if settings.consecutive else quote
    inside = "".join(part if part[:1] == "\\" else part.replace(quote * 2, doubled) for part in parts)
    return _ESCAPE.sub(_meaning, inside).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _meaning(found: re.Match[str]) -> str:
    short, long, octal, letter = found.groups()
    if short or long:
        return chr(int(short or long, 16))
    return chr(int(octal, 8)) if octal else _MEANINGS.get(letter, letter)
