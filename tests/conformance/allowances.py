"""The number of calls that a text such as "1 per left row + 1 per right row" allows."""

import re
from collections.abc import Mapping, Sequence

__all__ = ["exact_calls"]

_TERM = re.compile(r"^(?:at most )?(\d+)(?: calls?)?(?: per (.+?))?(?: for .*)?$")


def exact_calls(text: str, units: Mapping[str, int], written: Sequence[str] = ()) -> tuple[int, int] | None:
    """Returns the least and the most calls, or None if the text counts by an unknown unit.

    Parts after semicolons may start with a side and a colon; terms are joined with "+". A bare number is exact.
    "at most" has no least. `written` are the calls in the query. If the text counts them one by one, equal calls may
    be made once; if it counts both sides of a join, a condition that is derived for the other side need not call.
    """
    calls: list[int] = []
    exact = True
    for part in text.split(";"):
        side, colon, terms = part.rpartition(":")
        for term in terms.split("+"):
            match = _TERM.match(term.strip().lower())
            if match is None:
                return None
            unit = _unit(match[2] or "")
            unit = f"{side.strip().lower()} {unit}" if colon and unit else unit
            if unit and unit not in units:
                return None
            calls += [units[unit]] * int(match[1]) if unit else [int(match[1])]
            exact = exact and "at most" not in term
    sides = "left" in text and "right" in text
    told = len(calls) == len(written) or (sides and len(written) < len(calls) <= 2 * len(written))
    least = sum(sorted(calls)[: len(set(written))]) if told else sum(calls)
    return (least if exact else 0), sum(calls)


def _unit(text: str) -> str:
    """Returns one name for rows that conditions without calls leave, and one for those that all conditions leave."""
    if re.search(r"\brows? (?:that (?:is|are|remains?) )?left\b|\bremaining rows?\b", text):
        return "row left"
    return "surviving row" if re.search(r"\bsurviv|\bpass(?:es|ing)\b", text) else text
