"""Expressions over statistics of columns: "mean of the column", "(maximum, minimum)", "maximum + minimum"."""

import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tests.conformance.functions.expressions import NotUnderstood, Scope, read_expression

__all__ = ["Statistic", "statistic"]

Statistic = Callable[[Sequence[Sequence[Any]]], Any]
"""From columns without nulls, one per argument, to a value; None if it is about no row."""

_KINDS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "maximum": max,
    "minimum": min,
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "count": len,
    "median": statistics.median,
}
_OTHER_WORDS = (
    (r"\b(?:max|largest|greatest)\b(?: values?)?", "maximum"),
    (r"\b(?:min|smallest|least)\b(?: values?)?", "minimum"),
    (r"\b(?:average|avg|arithmetic mean)\b", "mean"),
    (r"\b(?:number of (?:values|rows|elements)|row count|length)\b", "count"),
    (r"\bplus\b", "+"),
    (r"\bminus\b", "-"),
    (r",? as (?:an? )?[\w-]+(?: [\w-]+)?$", ""),
    (r"^(?:returns |the value is |computes )", ""),
    (r"\bthe (?=\w)", ""),
)
_EACH = re.compile(r"^(\w+) (?:over|of|across) (?:all )?arguments of (?:each|every|its) argument'?s (\w+)$")
_OF_COLUMN = re.compile(r"\b(\w+) (?:of|over|in) (?:its |all )?(column|argument|values|(\w+))\b")


def statistic(text: str, names: Sequence[str]) -> Statistic:
    """The expression over columns of arguments of these names. Raises NotUnderstood."""
    told = text.strip().rstrip(".")
    for pattern, word in _OTHER_WORDS:
        told = re.sub(pattern, word, told, flags=re.IGNORECASE)
    told = told.strip()
    if match := _EACH.match(told):
        outer, inner = _kind(match[1]), _kind(match[2])
        return lambda columns: outer([inner(column) for column in columns]) if columns and columns[0] else None
    places = {name.lower(): place for place, name in enumerate(names)}
    asked: dict[str, tuple[Callable[[Sequence[Any]], Any], int]] = {name: (kind, 0) for name, kind in _KINDS.items()}

    def named(match: re.Match[str]) -> str:
        kind, place = _kind(match[1]), places.get((match[3] or "").lower(), 0)
        if match[3] and match[3].lower() not in places:
            raise NotUnderstood(f"{text!r}: {match[3]!r} is no argument")
        name = f"{match[1].lower()}_{place}"
        asked[name] = (kind, place)
        return name

    expression = read_expression(_OF_COLUMN.sub(named, told), tuple(asked))

    def value(columns: Sequence[Sequence[Any]]) -> Any:
        if not columns or not columns[0]:
            return None
        known = {name: kind(columns[place]) for name, (kind, place) in asked.items() if columns[place]}
        return expression(Scope(known))

    return value


def _kind(word: str) -> Callable[[Sequence[Any]], Any]:
    try:
        return _KINDS[word.lower()]
    except KeyError:
        raise NotUnderstood(f"{word!r} is nothing known of a column") from None
