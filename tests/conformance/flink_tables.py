"""The table API of the cases as SQL, a query with the names that functions are bound to, and kinds of changelogs."""

import re
from collections.abc import Sequence

from remote_udf.table_arguments import ChangelogMode
from tests.conformance.binding import Bound, called_in_from, is_process
from tests.conformance.cases import Case
from tests.conformance.checking import CaseError, described

__all__ = ["changelog_mode", "process_sql"]

_BUILT_IN = {"TO_CHANGELOG": "to_changelog", "FROM_CHANGELOG": "from_changelog"}
_SQL = re.compile(r"\s*(SELECT|WITH|INSERT|EXECUTE)\b", re.IGNORECASE)
_CHANGELOG = re.compile(r"^(\w+)((?:\.partitionBy\([^)]*\))?)\.(to|from)Changelog\((.*)\)$", re.DOTALL)
_PROCESS = re.compile(
    r"^(\w+)((?:\.(?:partitionBy|orderBy)\([^)]*\))*)\.process\(\s*(\w+)\s*(?:,\s*(.*))?\)$", re.DOTALL
)
_FROM_CALL = re.compile(r"^fromCall\(\s*(\w+)\s*(?:,\s*(.*))?\)$", re.DOTALL)


def changelog_mode(text: str) -> ChangelogMode | None:
    """The mode of "{+I,+U,-D}, deletes may carry the key only"; None if the text names no kinds."""
    kinds = re.findall(r"[+-][IUD]", text)
    behind = text.partition("}")[2]
    return (
        ChangelogMode.of(*kinds, key_only_deletes="key" in behind and "no delete by key" not in behind)
        if kinds
        else None
    )


def process_sql(case: Case, bound: Sequence[Bound]) -> tuple[str, dict[str, str]]:
    """The query as SQL with the bound functions' own names, and from those to the names in the query.

    Raises CaseError for a text that is no query.
    """
    query = _sql(case)
    names: dict[str, str] = {}
    process = [each for each in bound if is_process(each.words)]
    for name in called_in_from(query):
        chosen = _chosen(name, process)
        if chosen is not None:
            query = re.sub(rf"(?:`{re.escape(name)}`|(?<![\w`.]){re.escape(name)})(?=\s*\()", f"`{chosen.name}`", query)
            names[chosen.name] = name
    for name, own in _BUILT_IN.items():
        query = re.sub(rf"\b{name}(?=\s*\()", own, query)
        names[own] = name
    query = re.sub(r"MAP\[(.*?)\]", r"map(\1)", query)
    query = re.sub(r"\bROW\(", "struct(", query)
    return re.sub(r"PARSE_JSON\(", "parse_json(", query), names


def _chosen(name: str, bound: Sequence[Bound]) -> Bound | None:
    """The function of that name; else the only one, or the one at the place that the name's number gives."""
    for each in bound:
        if each.words.name.lower() == name.lower():
            return each
    if name.upper() in _BUILT_IN or not bound:
        return None
    number = re.search(r"(\d+)$", name)
    if number is not None and len(bound) > 1:
        place = int(number[1]) - 1
        return bound[place] if place < len(bound) else None
    return bound[0]


def _sql(case: Case) -> str:
    query = case.query.strip()
    if _SQL.match(query):
        return query
    if match := _CHANGELOG.match(query):
        table = f"TABLE {match[1]}{_clauses(match[2])}"
        return f"SELECT * FROM {match[3].upper()}_CHANGELOG(input => {table}{_more(match[4])})"
    if match := _PROCESS.match(query):
        words = next((each for each in case.functions), None)
        arguments = [str(each["name"]) for each in (words.raw.get("arguments") or () if words else ())]
        tables = [str(each["name"]) for each in (words.raw.get("arguments") or () if words else ())
                  if "table" in str(each.get("kind", ""))]  # fmt: skip
        scalars = [name for name in arguments if name not in tables]
        given = [f"{tables[0] if tables else 'input'} => TABLE {match[1]}{_clauses(match[2])}"]
        for place, argument in enumerate(_parts(match[4] or "")):
            name, equals, value = argument.partition(" = ")
            given.append(f"{name} => {value}" if equals else f"{scalars[place]} => {argument}")
        return f"SELECT * FROM {match[3]}({', '.join(given)})"
    if match := _FROM_CALL.match(query):
        arguments = []
        for argument in _parts(match[2] or ""):
            text = re.sub(r"^(\w+) = (\w+) partitioned by (\w+|\([^)]*\))", r"\1 => TABLE \2 PARTITION BY \3", argument)
            text = re.sub(r" ordered by (.*)$", r" ORDER BY (\1)", text)
            arguments.append(re.sub(r"^(\w+) = ", r"\1 => ", text))
        text = ", ".join(arguments)
        return f"SELECT * FROM {match[1]}({_order_closed(text)})"
    raise CaseError(
        "query", described(query), "SQL, t.process(f, ...), fromCall(f, ...), t.toChangelog() or t.fromChangelog()"
    )


def _order_closed(text: str) -> str:
    """`ORDER BY (ts asc), score desc, on_time => ...`: what was split at the commas of the order."""
    return re.sub(r"ORDER BY \(([^)]*)\)((?:, \w+(?: asc| desc)?)+)(?=, \w+ =>|$)", r"ORDER BY (\1\2)", text)


def _clauses(text: str) -> str:
    keys = re.search(r"partitionBy\(([^)]*)\)", text)
    order = re.search(r"orderBy\(([^)]*)\)", text)
    return (f" PARTITION BY ({keys[1]})" if keys else "") + (f" ORDER BY ({order[1]})" if order else "")


def _more(text: str) -> str:
    return "".join(", " + re.sub(r"^(\w+) = ", r"\1 => ", part) for part in _parts(text))


def _parts(text: str) -> list[str]:
    """Split at the commas that stand in no brackets and no quotes."""
    parts, depth, start, quoted = [], 0, 0, False
    for place, letter in enumerate(text):
        quoted ^= letter == "'"
        if not quoted:
            depth += (letter in "([<{") - (letter in ")]>}")
            if letter == "," and depth == 0:
                parts.append(text[start:place].strip())
                start = place + 1
    return [part for part in (*parts, text[start:].strip()) if part]
