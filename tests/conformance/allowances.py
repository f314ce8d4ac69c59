"""How many calls a text such as "1 per left row + 1 per right row" stands for."""

import re
from collections.abc import Mapping

__all__ = ["exact_calls"]

_TERM = re.compile(r"^(?:at most )?(\d+)(?: calls?)?(?: per (.+?))?(?: for .*)?$")


def exact_calls(text: str, units: Mapping[str, int]) -> tuple[int, int] | None:
    """The least and the most calls; None if the text counts by something that is not known.

    Parts after semicolons may start with a side and a colon; terms are joined with "+". A bare number is exact.
    "at most" has no least.
    """
    most, exact = 0, True
    for part in text.split(";"):
        side, colon, terms = part.rpartition(":")
        for term in terms.split("+"):
            match = _TERM.match(term.strip().lower())
            if match is None:
                return None
            unit = match[2] or ""
            unit = f"{side.strip().lower()} {unit}" if colon and unit else unit
            if unit and unit not in units:
                return None
            most += int(match[1]) * (units[unit] if unit else 1)
            exact = exact and "at most" not in term
    return (most if exact else 0), most
