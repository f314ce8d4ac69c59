"""The query of a case as SQL: statements before it, assignments of views, and calls of the table API.

A text that is neither SQL nor the table API, such as "operator test", is not changed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.conformance.cases import FunctionWords
from tests.conformance.table_api import is_chain, parts, sql_of

__all__ = ["Statements", "created_view", "is_query", "query_of_view", "statements_of", "view_of"]

_SQL = re.compile(
    r"\s*(SELECT\b|WITH\b|VALUES\b|INSERT\b|EXECUTE\b|CREATE\b|(?:DROP|ALTER)\s+\w+\s|USE\s|EXPLAIN\b|SET\s+'|\()",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"('(?:[^']|'')*')|--[^\n]*|/\*.*?\*/", re.DOTALL)
_SET = re.compile(r"^SET\s+'([^']+)'\s*=\s*'([^']*)'$", re.IGNORECASE)
_DECLARED = re.compile(
    r"^(?:CREATE|DROP|ALTER)\s+(?:OR\s+REPLACE\s+)?(?:TEMPORARY\s+)?(?:SYSTEM\s+)?(?:FUNCTION|TABLE|CATALOG|DATABASE)\b|^USE\s",
    re.IGNORECASE,
)
"""What a case has in other fields: functions, tables with their rows, and sinks."""
_THEN = re.compile(
    r"[\s,.]+then\s*:?\s+(?=(?:SELECT|WITH|INSERT|CREATE|DROP|EXECUTE)\b|SET\s+'|(?:view\s+|table\s+)?\w+\s*:=|[A-Za-z_]\w*\s*\.)",
    re.IGNORECASE,
)
_SET_BEGIN = re.compile(r"^EXECUTE\s+STATEMENT\s+SET\s+BEGIN\s+|^BEGIN\s+STATEMENT\s+SET$", re.IGNORECASE)
_SET_END = re.compile(r"^END$", re.IGNORECASE)
_EXPLAIN = re.compile(r"^EXPLAIN(\s+PLAN\s+FOR|\s+\w+(\s*,\s*\w+)*(?=\s+SELECT))?\s+", re.IGNORECASE)
_INSERT = re.compile(r"^INSERT\s+INTO\s+([\w.`]+)\s*(\([^()]*\)\s*)?(?=SELECT\b|WITH\b|VALUES\b)", re.IGNORECASE)
_ROWS = re.compile(r"^(?:SELECT|WITH|VALUES|INSERT)\b", re.IGNORECASE)
_ASSIGNED = re.compile(r"^(?:view\s+|table\s+)?(\w+)\s*:=\s*(.+)$", re.IGNORECASE | re.DOTALL)
_CREATED = re.compile(
    r"^CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMP(?:ORARY)?\s+)?(?:VIEW|TABLE(?=.*\sAS\s+(?:SELECT|WITH|VALUES)\b))\s+"
    r"(?:IF\s+NOT\s+EXISTS\s+)?(`[^`]+`|\w+)(.*?)(?:\sWITH\s*\([^()]*\))?\sAS\s+(?=SELECT\b|WITH\b|VALUES\b|\(|TABLE\b|\w+\.)(.+)$",
    re.IGNORECASE | re.DOTALL,
)


@dataclass
class Statements:
    """The statements before the query, the query, and the options that statements set.

    `shown` are all statements that give rows, by the sink of each, "" if it has none; the last one is the query.
    """

    query: str
    setup: list[str] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=dict)
    shown: list[tuple[str, str]] = field(default_factory=list)


def statements_of(
    query: str, setup: Sequence[str], functions: Sequence[FunctionWords], *, refused: bool
) -> Statements:  # fmt: skip
    """A query whose rows go into a sink is run without the sink, unless the case is `refused`, perhaps for the sink.

    Queries whose rows go into the sink of the last one are one query. Functions are bound by their names, and
    tables are those of the case, so statements that declare them are skipped.
    """
    made = Statements(query)
    first = [text for each in setup for text in _split(_COMMENT.sub(_without_comment, each))]
    own = list(_split(_COMMENT.sub(_without_comment, query)))
    if not refused:
        own = [text for each in own if not _SET_END.match(each) and (text := _SET_BEGIN.sub("", each))]
    texts = [*first, *own]
    if not texts or not all(_SQL.match(text) or _ASSIGNED.match(text) or is_chain(text) for text in texts):
        made.setup = list(setup)
        return made
    arguments = {words.name: words.raw.get("arguments") or () for words in functions}
    *before, made.query = texts
    for place, text in enumerate(before):
        if match := _SET.match(text):
            made.config[match[1]] = match[2]
        elif created_view(text) or not _DECLARED.match(text):
            viewed = _viewed(_kept(text, texts[place + 1 :]), arguments)
            if refused or place < len(first) or not _ROWS.match(viewed[-1]):
                made.setup += viewed
            else:
                made.setup += viewed[:-1]
                made.shown.append(_shown(viewed[-1]))
    *views, made.query = _plain(made.query, arguments)
    made.setup += views
    made.query = _EXPLAIN.sub("", made.query)
    if not refused:
        sink, made.query = _shown(made.query)
        same = [query for name, query in made.shown if sink and name == sink]
        made.query = " UNION ALL ".join([*same, made.query])
        made.shown = [each for each in made.shown if each[1] not in same]
        made.shown.append((sink, made.query))
    return made


def _without_comment(match: re.Match[str]) -> str:
    """Returns a text in quotes, which may look like a comment, and a space for a comment."""
    return match[1] or " "


def _shown(text: str) -> tuple[str, str]:
    """Returns the sink of a statement and the query whose rows go into it."""
    match = _INSERT.match(text)
    return ("", text) if match is None else (match[1].strip("`"), text[match.end() :])


def is_query(text: str) -> bool:
    """Whether the text is SQL or the table API, and not prose."""
    return _SQL.match(text) is not None or is_chain(text)


def created_view(statement: str) -> str | None:
    """The name of the view that a statement creates; None if it creates none."""
    match = _CREATED.match(statement.strip())
    return match[1].strip("`") if match is not None else None


def query_of_view(name: str, setup: Sequence[str]) -> str | None:
    """The query of the view that one of these statements creates under a name; None if none does."""
    found = (_CREATED.match(each.strip()) for each in setup if created_view(each) == name)
    return next((match[3] for match in found if match is not None), None)


def view_of(name: str, query: str) -> str:
    """Returns a statement that creates a temporary view, since the tables of a case are temporary views, too."""
    return f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}"


def _kept(text: str, later: Sequence[str]) -> str:
    """A statement that fills a table which later statements read becomes a view of that name."""
    match = _INSERT.match(text)
    name = match[1].strip("`") if match is not None else ""
    read = match is not None and any(re.search(rf"\b(?:FROM|JOIN|TABLE)\s+`?{name}\b", each, re.I) for each in later)
    return f"{name} := {text[match.end() :]}" if match is not None and read else text


def _viewed(text: str, arguments: Mapping[str, Sequence[Mapping[str, str]]]) -> list[str]:
    """A statement; one that names a query creates a view."""
    assigned, created = _ASSIGNED.match(text), _CREATED.match(text)
    if assigned is not None:
        name, query = assigned.groups()
    elif created is not None:
        name, query = f"{created[1]}{created[2]}", created[3]
    else:
        return [text]
    *before, query = _plain(query, arguments)
    return [*before, view_of(name, query)]


def _plain(text: str, arguments: Mapping[str, Sequence[Mapping[str, str]]]) -> list[str]:
    return sql_of(text, arguments) if is_chain(text) and not _SQL.match(text) else [text]


def _split(text: str) -> Iterator[str]:
    """Statements, at semicolons, and at "then" between two of them."""
    for part in parts(text, ";"):
        start = 0
        for match in _THEN.finditer(part):
            if _is_whole(part[start : match.start()]):
                yield part[start : match.start()].strip()
                start = match.end()
        yield part[start:].strip()


def _is_whole(text: str) -> bool:
    """Whether the text ends outside quotes, brackets and CASE, so that `then` after it begins a statement."""
    plain = re.sub(r"'[^']*'|`[^`]*`", "", text)
    cases = len(re.findall(r"\bCASE\b", plain, re.IGNORECASE)) - len(re.findall(r"\bEND\b", plain, re.IGNORECASE))
    return "'" not in plain and plain.count("(") == plain.count(")") and cases <= 0
