"""Calls of Flink's table API as SQL: `t.where(a > 1).select(f(a).as(b))`, `t.partitionBy(k).process(f, 1)`.

A chain becomes one query. A step that takes a whole table, such as `process`, gets the preceding query as a view.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from tests.conformance.checking import CaseError, described

__all__ = ["is_chain", "parts", "sql_of"]

_CHAIN = re.compile(r"^\s*(?:(?:\w+\.)?from(?:Call)?\(|[A-Za-z_]\w*\s*\.\s*[A-Za-z_]\w*\s*\()")
_STEP = re.compile(r"\s*\.?\s*([A-Za-z_]\w*)\s*\(")
_SINKS = ("execute", "insertInto", "executeInsert", "print", "collect", "explain")
_OWN = ("env", "tEnv", "tableEnv", "t_env")
_COLUMN = re.compile(r"""(?:\$|\bcol)\(\s*["']([^"']+)["']\s*\)|\$(?=[A-Za-z_])""")
_LITERAL = re.compile(r"\blit\(([^()]*)\)")
_CALL = re.compile(r"""\bcall\(\s*["']?(\w+)["']?\s*(?:,\s*|(?=\)))""")
_ALIAS = re.compile(r"""^(.*)\.(?:as|alias)\(\s*([^()]*?)\s*\)$""", re.DOTALL)
_ARGUMENT = re.compile(r"""^(.*)\.asArgument\(\s*["']?(\w+)["']?\s*\)$""", re.DOTALL)
_NAMED = re.compile(r"^(\w+)\s*(?:=>|=(?!=))\s*(.+)$", re.DOTALL)
_TABLE = re.compile(
    r"^(\w+)(?:\s+partitioned by\s+(\([^)]*\)|\w+))?(?:\s+ordered by\s+(.+))?$", re.IGNORECASE | re.DOTALL
)
_COMPARED = {
    "isEqual": "=", "isNotEqual": "<>", "isGreater": ">", "isGreaterOrEqual": ">=", "isLess": "<",
    "isLessOrEqual": "<=", "plus": "+", "minus": "-", "times": "*", "dividedBy": "/", "and": "AND", "or": "OR",
}  # fmt: skip
_DESCRIPTOR = re.compile(r"\bdescriptor\(([^()]*)\)", re.IGNORECASE)
_METHOD = re.compile(rf"\.({'|'.join(_COMPARED)})\(([^()]*)\)")
Arguments = Mapping[str, Sequence[Mapping[str, str]]]
"""By name of a function what the case says of its arguments."""


def is_chain(text: str) -> bool:
    """Whether the text begins as a call of the table API does."""
    return _CHAIN.match(text) is not None and "=>" not in text.split(".", 1)[0]


def sql_of(text: str, arguments: Arguments) -> list[str]:
    """Statements that create views, and the query last. Raises CaseError for a method that is not known."""
    return _Chain(text.strip().rstrip(";"), arguments).statements()


def parts(text: str, separator: str = ",") -> list[str]:
    """Splits at the separator outside brackets and quotes."""
    found, depth, start, quote = [], 0, 0, ""
    for place, letter in enumerate(text):
        if quote or letter in "'\"`":
            quote = "" if letter == quote else quote or letter
            continue
        depth += (letter in "([{") - (letter in ")]}")
        if letter == separator and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
    return [part for part in (*found, text[start:].strip()) if part]


class _Chain:
    def __init__(self, text: str, arguments: Arguments) -> None:
        self._text, self._arguments = text, arguments
        self._views: list[str] = []
        self._numbers = count(1)
        self._query = ""
        """The query so far; "" while it is `_table` alone."""
        self._table = ""
        self._partition = self._order = self._group = ""

    def statements(self) -> list[str]:
        for name, inside in self._steps():
            if name in _SINKS:
                continue
            step = getattr(self, f"_{name}", None)
            if step is None:
                raise CaseError("query", described(self._text), f"methods of a table that are known, not {name!r}")
            step(parts(inside))
        if self._order:
            self._query = f"{self._source()} ORDER BY {self._order}"
        return [*self._views, self._query or f"SELECT * FROM {self._table}"]

    def _steps(self) -> Iterator[tuple[str, str]]:
        """Yields methods and their arguments; the first may be the name of a table."""
        place = 0
        head = re.match(r"\s*(\w+)\s*(?=\.)", self._text)
        if head is not None:
            place = head.end()
            self._table = "" if head[1] in _OWN else head[1]
        while place < len(self._text.rstrip()):
            match = _STEP.match(self._text, place)
            if match is None:
                raise CaseError("query", described(self._text[place:]), "another call of a method, or the end")
            end = _closing(self._text, match.end())
            yield match[1], self._text[match.end() : end]
            place = end + 1

    def _source(self) -> str:
        """Returns the query so far as the beginning of another."""
        return f"SELECT * FROM {self._relation()}"

    def _relation(self) -> str:
        return f"({self._query}) AS {self._name()}" if self._query else self._table

    def _name(self) -> str:
        return f"chain_{next(self._numbers)}"

    def _whole(self) -> str:
        """Returns the table so far under a name."""
        if self._query:
            self._table, query, self._query = self._name(), self._query, ""
            self._views.append(f"CREATE OR REPLACE TEMPORARY VIEW {self._table} AS {query}")
        return self._table

    # Methods.

    def _from(self, given: list[str]) -> None:
        self._table = given[0].strip("\"'")

    def _select(self, items: list[str]) -> None:
        group, self._group = (f" GROUP BY {self._group}" if self._group else ""), ""
        self._query = f"SELECT {', '.join(map(_item, items))} FROM {self._relation()}{group}"

    def _where(self, conditions: list[str]) -> None:
        self._query = f"{self._source()} WHERE {_expression(', '.join(conditions))}"

    _filter = _where

    def _groupBy(self, keys: list[str]) -> None:
        self._group = ", ".join(map(_expression, keys))

    def _distinct(self, _: list[str]) -> None:
        self._query = f"SELECT DISTINCT * FROM {self._relation()}"

    def _unionAll(self, other: list[str]) -> None:
        self._query = f"{self._source()} UNION ALL SELECT * FROM {other[0]}"

    def _addColumns(self, items: list[str]) -> None:
        self._query = f"SELECT *, {', '.join(map(_item, items))} FROM {self._relation()}"

    _map = _select

    def _as(self, names: list[str]) -> None:
        shown = ", ".join(_expression(name).strip("'") for name in names)
        self._query = f"SELECT * FROM ({self._query or f'SELECT * FROM {self._table}'}) AS {self._name()}({shown})"

    def _joinLateral(self, given: list[str]) -> None:
        self._query = f"{self._source()}, LATERAL TABLE({self._lateral(given[0])}"

    def _leftOuterJoinLateral(self, given: list[str]) -> None:
        condition = _expression(given[1]) if len(given) > 1 else "TRUE"
        self._query = f"{self._source()} LEFT JOIN LATERAL TABLE({self._lateral(given[0])} ON {condition}"

    def _lateral(self, call: str) -> str:
        match = _ALIAS.match(call)
        names = ", ".join(_expression(name).strip("'") for name in parts(match[2])) if match else ""
        return f"{_expression(match[1] if match else call)}) AS {self._name()}{f'({names})' if names else ''}"

    def _partitionBy(self, keys: list[str]) -> None:
        self._partition = f" PARTITION BY ({', '.join(map(_expression, keys))})"

    def _orderBy(self, keys: list[str]) -> None:
        self._order = ", ".join(re.sub(r"\.(asc|desc)(?:\(\))?$", r" \1", _expression(key)) for key in keys)

    def _clauses(self) -> str:
        order, self._order = (f" ORDER BY ({self._order})" if self._order else ""), ""
        partition, self._partition = self._partition, ""
        return partition + order

    def _process(self, given: list[str]) -> None:
        name, *values = given
        name = name.strip("\"'")
        told = self._arguments.get(name) or next(iter(self._arguments.values()), ())
        tables = [str(each["name"]) for each in told if "table" in str(each.get("kind", ""))]
        scalars = [str(each["name"]) for each in told if str(each["name"]) not in tables]
        table = f"{tables[0] if tables else 'input'} => TABLE {self._whole()}{self._clauses()}"
        self._query = f"SELECT * FROM {name}({', '.join([table, *_passed(values, scalars)])})"

    def _changelog(self, name: str, values: list[str]) -> None:
        table = f"input => TABLE {self._whole()}{self._clauses()}"
        self._query = f"SELECT * FROM {name}({', '.join([table, *_passed(values, ())])})"

    def _toChangelog(self, values: list[str]) -> None:
        self._changelog("TO_CHANGELOG", values)

    def _fromChangelog(self, values: list[str]) -> None:
        self._changelog("FROM_CHANGELOG", values)

    def _fromCall(self, given: list[str]) -> None:
        name, *values = given
        told = self._arguments.get(name.strip("\"'")) or next(iter(self._arguments.values()), ())
        tables = [str(each["name"]) for each in told if "table" in str(each.get("kind", ""))]
        passed: list[str] = []
        for value in _ordered(values):
            argument, text = _named(value)
            match = _TABLE.match(text)
            if match is not None and (argument in tables or match[2]):
                partition = f" PARTITION BY {match[2]}" if match[2] else ""
                order = f" ORDER BY ({match[3]})" if match[3] else ""
                passed.append(f"{argument} => TABLE {match[1]}{partition}{order}")
            else:
                passed += _passed([value], [str(each["name"]) for each in told][len(passed) :])
        name = name.strip("\"'")
        self._query = f"SELECT * FROM {name}({', '.join(passed)})"


def _ordered(values: Sequence[str]) -> list[str]:
    """`ordered by ts asc, score desc`: joins the parts of an order, which the commas have split."""
    whole: list[str] = []
    for value in values:
        if whole and " ordered by " in whole[-1] and not _NAMED.match(value):
            whole[-1] += f", {value}"
        else:
            whole.append(value)
    return whole


def _passed(values: Sequence[str], names: Sequence[str]) -> list[str]:
    passed = []
    for place, value in enumerate(values):
        name, text = _named(value)
        if not name and place >= len(names):
            raise CaseError("query", described(value), "an argument with a name, or one that the function has")
        passed.append(f"{name or names[place]} => {_expression(text)}")
    return passed


def _named(value: str) -> tuple[str, str]:
    if match := _ARGUMENT.match(value):
        return match[2], match[1]
    if match := _NAMED.match(value):
        return match[1], match[2]
    return "", value


def _item(text: str) -> str:
    match = _ALIAS.match(text)
    return f"{_expression(match[1])} AS {_expression(match[2]).strip(chr(39))}" if match else _expression(text)


def _expression(text: str) -> str:
    """An expression of the table API in SQL. Texts in double quotes are literals."""
    text = _COLUMN.sub(lambda match: match[1] or "", text.strip())
    text = _CALL.sub(r"\1(", _LITERAL.sub(r"\1", text))
    while (shown := _METHOD.sub(lambda match: f" {_COMPARED[match[1]]} {match[2]}", text)) != text:
        text = shown
    text = re.sub(r'"([^"]*)"', r"'\1'", text)
    text = _DESCRIPTOR.sub(lambda match: f"DESCRIPTOR({match[1].replace(chr(39), '')})", text)
    return re.sub(r"={2,3}", "=", text).replace("&&", "AND")


def _closing(text: str, start: int) -> int:
    depth, quote = 1, ""
    for place in range(start, len(text)):
        letter = text[place]
        if quote or letter in "'\"":
            quote = "" if letter == quote else quote or letter
            continue
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    raise CaseError("query", described(text), "a closing bracket for each that opens")
