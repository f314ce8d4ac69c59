"""The words for what a function does: clauses that give a value, take time, or add nothing.

A clause that matches no pattern is not interpreted: the function counts as missing.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.column_types import ColumnType, UnknownType, parse_type
from tests.conformance.functions.expressions import Expression, NotUnderstood, Scope, read_expression, text_of

__all__ = ["Behaviour", "read_behaviour"]

_LATER = re.compile(
    r"[,;]?\s*\b(?:it |the future )?(?:completes |completing )?(?:about |after |roughly |some )?(\d+) ?ms( later)?"
    r"( on (another|a different|the calling) thread)?",
    re.IGNORECASE,
)
_BY_INPUT = re.compile(r"[,;]?\s*\bafter ((?:\d+, )+\d+) ms for (\w+) = ((?:\d+, )+\d+)", re.IGNORECASE)
_MANNER = re.compile(
    r"[,;]?\s*\b(completes? )?(immediately|asynchronously|synchronously|on (another|a different|the calling) thread"
    r"|right away|at once)\b",
    re.IGNORECASE,
)
_ASIDE = re.compile(r",? i\.e\. .*$|\s*\((text )?concatenation\)|\s*\((text|string) concatenation\)", re.IGNORECASE)
_SILENT = re.compile(
    r"^(keeps an? (invocation )?counter|never (succeeds|completes)|deterministic|throws .*|an? [\w-]+ overload .*)$",
    re.IGNORECASE,
)
_OVERLOAD = re.compile(r"^(?:the )?([A-Z_]+) overload returns (.+)$")
_RETURNS = re.compile(
    r"^(?:on success,? )?(?:it )?(?:returns|completes with|yields|emits|is) (?:the value )?(.+)$", re.IGNORECASE
)
_SELF = re.compile(
    r"^(the )?identity( function)?$|^(?:the|its|the given) (argument|input|value)( unchanged)?$", re.IGNORECASE
)
_STRUCT = re.compile(r"^(?:an? (?:struct|row) with )?(\w+ = .+)$", re.IGNORECASE)
_ROWS = re.compile(
    r"^(?:emits |completes with |returns )?(?:the )?(?:(?:one|two|three|\d+) )?rows? (.+)$", re.IGNORECASE
)
_SPLIT = re.compile(r"^splits (\w+) (?:at|on|by) '([^']+)'", re.IGNORECASE)
_PREFIXED = re.compile(r"as (the )?prefixed split", re.IGNORECASE)
_PER_PART = re.compile(r"one row per part|each with (\w+) in front( when given)?|no rows when .*", re.IGNORECASE)


@dataclass
class Behaviour:
    """The value and the duration of a function. Table functions return the list of their rows."""

    value: Expression
    delay: Callable[[Scope], float] = field(default=lambda scope: 0.0)


def read_behaviour(text: str, names: tuple[str, ...], returns: str, first_type: str = "") -> Behaviour:
    """Reads the behaviour of a function with arguments of these names. Raises NotUnderstood."""
    plain, delay = _without_time(_ASIDE.sub("", text))
    table = returns.strip().upper().startswith("TABLE")
    value: Expression | None = None
    overloads: dict[str, Expression] = {}
    fallback: Expression | None = None
    for clause in _clauses(plain):
        if _SILENT.match(clause):
            continue
        if match := _OVERLOAD.match(clause):
            overloads[match[1]] = read_expression(match[2], names)
        elif match := re.match(r"^without (?:an? )?arguments? (.+)$", clause, re.IGNORECASE):
            fallback = _rows(match[1], names)
        elif table:
            found = _table_value(clause, names)
            value = found if value is None else value
        elif _SELF.match(_told(clause)):
            value = _argument(names)
        else:
            value = _value(_told(clause), names)
    if overloads:
        value = _chosen(overloads, names)
    if value is None:
        if not re.search(r"never (succeeds|completes)|always fails", text, re.IGNORECASE):
            raise NotUnderstood(f"behaviour {text!r}")
        value = _nothing
    return Behaviour(value if fallback is None else _unless_given(value, fallback), delay)


def _without_time(text: str) -> tuple[str, Callable[[Scope], float]]:
    if match := _BY_INPUT.search(text):
        delays = dict(zip(match[3].split(", "), (int(part) / 1000 for part in match[1].split(", ")), strict=True))
        name = match[2]
        return _BY_INPUT.sub("", text), lambda scope: delays.get(text_of(scope.arguments.get(name)), 0.0)
    match = _LATER.search(text)
    seconds = int(match[1]) / 1000 if match else 0.0
    return _MANNER.sub("", _LATER.sub("", text)), lambda scope: seconds


def _clauses(text: str) -> list[str]:
    """Splits at semicolons and full stops outside quotes; commas of a split belong to it."""
    parts = re.split(r"('(?:[^']|'')*')", re.sub(r"; then\b", " and then", text))
    marked = "".join(part if i % 2 else re.sub(r";|\.(?=\s|$)", "\0", part) for i, part in enumerate(parts))
    return [clause.strip(" ,") for clause in marked.split("\0") if clause.strip(" ,")]


def _told(clause: str) -> str:
    match = _RETURNS.match(clause)
    return match[1].strip() if match else clause


def _value(text: str, names: tuple[str, ...]) -> Expression:
    text = re.sub(r"^(?:an? )?[A-Z]+ (?=\w)", "", text) if re.match(r"^(INT|BIGINT|STRING) ", text) else text
    if (match := _STRUCT.match(text)) and not text.startswith("'"):
        pairs = re.split(r",\s*(?:and\s+)?(?=\w+ = )|\s+and\s+(?=\w+ = )", match[1])
        fields = {}
        for pair in pairs:
            name, _, told = pair.partition(" = ")
            fields[name.strip()] = read_expression(told, names)
        return lambda scope: {name: field(scope) for name, field in fields.items()}
    return read_expression(text, names)


def _table_value(clause: str, names: tuple[str, ...]) -> Expression:
    if _PREFIXED.fullmatch(clause):
        return _split_value(names[0], "#", names[1] if len(names) > 1 else None)
    if _PER_PART.fullmatch(clause):
        return _nothing
    if match := _SPLIT.match(clause):
        rest = clause[match.end() :].strip(" ,")
        parts = [part.strip() for part in rest.split(",") if part.strip()]
        if any(_PER_PART.fullmatch(part) is None for part in parts):
            raise NotUnderstood(f"behaviour {clause!r}")
        prefix = next((found[1] for part in parts if (found := _PER_PART.fullmatch(part)) and found[1]), None)
        return _split_value(match[1], match[2], prefix)
    if match := re.match(r"^(?:emits |completes with |returns )?(?:one|a single) row:? (.+)$", clause, re.IGNORECASE):
        return _rows(match[1], names)
    if match := _ROWS.match(clause):
        return _rows(match[1].lstrip(": "), names)
    return _rows(_told(clause), names)


def _rows(text: str, names: tuple[str, ...]) -> Expression:
    outside = r"(?=(?:[^']*'[^']*')*[^']*$)(?![^(]*\))"
    parts = re.split(rf"(?:\s+and(?:\s+then)?\s+|,\s+then\s+|,\s+){outside}", text)
    items = [_value(part, names) for part in parts]
    return lambda scope: [item(scope) for item in items]


def _split_value(name: str, separator: str, prefix: str | None) -> Expression:
    def value(scope: Scope) -> Any:
        text = scope.arguments.get(name)
        if text is None or separator not in text:
            return []
        front = scope.arguments.get(prefix) if prefix else None
        return [(front or "") + part for part in text.split(separator)]

    return value


def _argument(names: tuple[str, ...]) -> Expression:
    return lambda scope: scope.arguments.get(names[0])


def _nothing(scope: Scope) -> Any:
    return None


def _unless_given(value: Expression, fallback: Expression) -> Expression:
    return lambda scope: value(scope) if scope.arguments else fallback(scope)


def _chosen(overloads: dict[str, Expression], names: tuple[str, ...]) -> Expression:
    """Chooses an overload by the type of the first argument's value."""
    python: dict[type, Expression] = {}
    for type_, expression in overloads.items():
        try:
            kind: ColumnType = parse_type(type_)
        except UnknownType as error:
            raise NotUnderstood(str(error)) from error
        key = {"string": str, "boolean": bool, "double": float, "float": float}.get(kind.kind, int)
        python[key] = expression

    def value(scope: Scope) -> Any:
        given = scope.arguments.get(names[0])
        return python.get(type(given), next(iter(python.values())))(scope)

    return value
