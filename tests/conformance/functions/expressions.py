"""The expressions for what a function returns: "'val ' followed by the decimal text of i".

    concatenation   sum ("followed by" sum)*
    sum             product (("+" | "-") product)*      "+" with a text on either side joins texts
    product         value (("*" | "/" | "%") value)*    "/" of integers cuts off
    value           number | 'text' | null | true | false | name | "(" concatenation ")" | "[" list "]"
                    | "text of" product | "the invocation count" | name "(" list ")"
                    | "(" list ")", a row
    any of them     "as text"

Arithmetic with null is null; null as text is "null", as it is in the language the cases come from.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.conformance.functions.wordings import plainly

__all__ = ["Expression", "NotUnderstood", "Scope", "read_expression", "text_of"]


class NotUnderstood(ValueError):
    """The words are no expression, or no behaviour."""


@dataclass(frozen=True)
class Scope:
    """The names in an expression: arguments, and the number of the function's call, from 1."""

    arguments: Mapping[str, Any]
    invocation: int = 1


Expression = Callable[[Scope], Any]

_COUNT = re.compile(
    r"\b(the )?(current )?(invocation (counter|count|number)|counter|count of (the )?(invocations|calls)"
    r"|number of (invocations|calls)( made)?)( so far)?\b"
)
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>\d+(?:\.\d+)?)|(?P<words>followed by|concatenated with"
    r"|(?:the )?(?:decimal |string )?text of|as (?:a )?(?:text|string)|#count)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\|\||[-+*/%(),\[\]]))"
)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "upper": lambda text: text.upper(),
    "lower": lambda text: text.lower(),
    "length": len,
    "abs": abs,
    "concat": lambda *parts: "".join(text_of(part) for part in parts),
    "max": max,
    "min": min,
}


def read_expression(text: str, names: tuple[str, ...]) -> Expression:
    """Returns the expression over arguments of these names. Raises NotUnderstood if the words are none."""
    # The original text is tried first, because words may be names of arguments.
    failure: NotUnderstood | None = None
    for told in (text, plainly(text)):
        try:
            reader = _Reader(_tokens(_outside_quotes(told)), names)
            expression = reader.concatenation()
            if not reader.rest:
                return expression
            raise NotUnderstood(f"{text!r}: cannot make sense of {reader.rest[0][1]!r}")
        except NotUnderstood as error:
            failure = failure or error
    assert failure is not None
    raise failure


def text_of(value: Any) -> str:
    """Formats a value as the language of the cases does."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(text_of(item) for item in value)}]"
    return str(value)


def _outside_quotes(text: str) -> str:
    parts = re.split(r"('(?:[^']|'')*')", text)
    return "".join(part if index % 2 else _COUNT.sub("#count", part) for index, part in enumerate(parts))


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, place = [], 0
    text = text.strip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise NotUnderstood(f"{text!r}: cannot make sense of {text[place:]!r}")
        assert match.lastgroup is not None
        tokens.append((match.lastgroup, match[match.lastgroup]))
        place = match.end()
    return tokens


class _Reader:
    """Reads tokens from left to right, as the grammar above has it."""

    def __init__(self, tokens: list[tuple[str, str]], names: tuple[str, ...]) -> None:
        self.rest = tokens
        self._names = {name.lower(): name for name in names}

    def concatenation(self) -> Expression:
        left = self._sum()
        while self._takes("followed by", "concatenated with", "||"):
            left = _joined(left, self._sum())
        return left

    def _sum(self) -> Expression:
        left = self._product()
        while sign := self._takes("+", "-"):
            left = _binary(sign, left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._value()
        while sign := self._takes("*", "/", "%"):
            left = _binary(sign, left, self._value())
        return left

    def _value(self) -> Expression:
        value = self._plain()
        if self.rest and self.rest[0][1].startswith("as "):
            self.rest = self.rest[1:]
            return _text(value)
        return value

    def _plain(self) -> Expression:
        if not self.rest:
            raise NotUnderstood("an expression ends too early")
        (kind, token), self.rest = self.rest[0], self.rest[1:]
        if kind == "text":
            return _constant(token[1:-1].replace("''", "'"))
        if kind == "number":
            return _constant(Decimal(token) if "." in token else int(token))
        if token == "#count":
            return lambda scope: scope.invocation
        if token.endswith("text of"):
            return _text(self._product())
        if token == "-":
            return _binary("-", _constant(0), self._value())
        if token in ("(", "["):
            items = self._list(")" if token == "(" else "]")
            if token == "[":
                return lambda scope: [item(scope) for item in items]
            return items[0] if len(items) == 1 else lambda scope: tuple(item(scope) for item in items)
        if kind == "name":
            return self._named(token)
        raise NotUnderstood(f"{token!r} cannot stand here")

    def _named(self, token: str) -> Expression:
        low = token.lower()
        if low in ("null", "true", "false"):
            return _constant({"null": None, "true": True, "false": False}[low])
        if self.rest and self.rest[0][1] == "(" and low in _FUNCTIONS:
            self.rest = self.rest[1:]
            return _called(_FUNCTIONS[low], self._list(")"))
        if low in self._names:
            name = self._names[low]
            return lambda scope: scope.arguments.get(name)
        raise NotUnderstood(f"{token!r} is no argument; there are {', '.join(self._names.values())}")

    def _list(self, end: str) -> list[Expression]:
        items: list[Expression] = []
        while not self._takes(end):
            if items and not self._takes(","):
                raise NotUnderstood(f"no {end!r} found")
            items.append(self.concatenation())
        return items

    def _takes(self, *signs: str) -> str:
        if self.rest and self.rest[0][0] in ("sign", "words") and self.rest[0][1] in signs:
            sign, self.rest = self.rest[0][1], self.rest[1:]
            return sign
        return ""


def _constant(value: Any) -> Expression:
    return lambda scope: value


def _text(value: Expression) -> Expression:
    return lambda scope: text_of(value(scope))


def _joined(left: Expression, right: Expression) -> Expression:
    return lambda scope: text_of(left(scope)) + text_of(right(scope))


def _called(function: Callable[..., Any], items: list[Expression]) -> Expression:
    def call(scope: Scope) -> Any:
        values = [item(scope) for item in items]
        return None if any(value is None for value in values) else function(*values)

    return call


def _binary(sign: str, left: Expression, right: Expression) -> Expression:
    return lambda scope: _calculated(sign, left(scope), right(scope))


def _calculated(sign: str, left: Any, right: Any) -> Any:
    if sign == "+" and (isinstance(left, str) or isinstance(right, str)):
        return text_of(left) + text_of(right)
    if left is None or right is None:
        return None
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "%":
            return abs(left) % abs(right) * (1 if left >= 0 else -1)
        case _:
            whole = isinstance(left, int) and isinstance(right, int)
            return int(Decimal(left) / Decimal(right)) if whole else left / right
