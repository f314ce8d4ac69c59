"""The table API of the cases as SQL, a query with the names of its bound functions, and kinds of changelogs."""

import re
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from remote_udf.functions import FunctionSpec
from remote_udf.row_kinds import ChangelogMode
from spark_client import RemoteSession
from tests.conformance.binding import Bound, called_in_from, is_process
from tests.conformance.cases import Case
from tests.conformance.checking import CaseError, described
from tests.conformance.table_api import parts

__all__ = ["changelog_mode", "constructed", "passed_arguments", "process_sql", "run_texts"]

_BUILT_IN = {"TO_CHANGELOG": "to_changelog", "FROM_CHANGELOG": "from_changelog"}
_SHORT = {"I": "+I", "UB": "-U", "UA": "+U", "D": "-D"}
_NAMED = {
    "retract": ("+I", "-U", "+U", "-D"), "all": ("+I", "-U", "+U", "-D"), "upsert": ("+I", "+U", "-D"),
    "append": ("+I",), "insert": ("+I",),
}  # fmt: skip
_PASSED = re.compile(r"(\w+)\s*=>\s*(.*)", re.DOTALL)
_SQL = re.compile(r"\s*(SELECT|WITH|INSERT|EXECUTE)\b", re.IGNORECASE)


def changelog_mode(text: str) -> ChangelogMode | None:
    """The mode of "{+I,+U,-D}, deletes may carry the key only", "I,UA,D" or "upsert"; None for a text without kinds."""
    kinds = re.findall(r"[+-][IUD]", text) or [_SHORT[each] for each in re.findall(r"\b(?:I|UB|UA|D)\b", text)]
    named = next((_NAMED[name] for name in _NAMED if re.search(rf"\b{name}", text, re.IGNORECASE)), None)
    behind = text.partition("}")[2]
    by_key = "key" in behind and "no delete by key" not in behind
    return ChangelogMode.of(*(kinds or named or ()), key_only_deletes=by_key) if kinds or named else None


def process_sql(
    case: Case, bound: Sequence[Bound], is_taken: Callable[[str], bool] = lambda name: False
) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """Returns views and, last, the query with the names of bound functions; and maps these to the names in the query.

    A name that Spark has for a function of its own gets its version. Raises CaseError for a text that is no query.
    """
    if not _SQL.match(case.query):
        raise CaseError("query", described(case.query), "SQL, or calls of the table API")
    names: dict[str, str] = {}
    process = [each for each in bound if is_process(each.words)]
    texts = []
    helpers = [each for each in bound if not is_process(each.words) and each.name != each.words.name]
    for text in (*case.setup, case.query):
        for helper in helpers:
            text = _renamed(text, helper.words.name, helper.name)
            names[helper.name] = helper.words.name
        for name in called_in_from(text):
            chosen = _chosen(name, process)
            if chosen is not None:
                own = chosen.key if chosen.spec is not None and is_taken(chosen.name) else chosen.name
                text = _renamed(text, name, own)
                names[own] = name
        for name, own in _BUILT_IN.items():
            text = re.sub(rf"\b{name}(?=\s*\()", own, text, flags=re.IGNORECASE)
            names[own] = name
        texts.append(constructed(text))
    return texts, names


def constructed(text: str) -> str:
    """Returns the text with maps, rows and variants made as in Spark."""
    text = re.sub(r"\bMAP\[(.*?)\]", r"map(\1)", text, flags=re.IGNORECASE)
    text = re.sub(r"\bROW\(", "struct(", text, flags=re.IGNORECASE)
    return re.sub(r"PARSE_JSON\(", "parse_json(", text)


def _renamed(text: str, name: str, own: str) -> str:
    """Calls a function by another name."""
    return re.sub(rf"(?:`{re.escape(name)}`|(?<![\w`.]){re.escape(name)})(?=\s*\()", f"`{own}`", text)


def _chosen(name: str, bound: Sequence[Bound]) -> Bound | None:
    """Returns the function of that name; else the only one, or the one whose place is the number in the name."""
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


def run_texts(remote: RemoteSession, texts: Sequence[str]) -> DataFrame:
    """Runs the statements and returns the rows of the last one."""
    *before, query = texts
    for each in before:
        remote.sql(each)
    return remote.sql(query)


def passed_arguments(query: str, spec: FunctionSpec | None) -> list[tuple[str, str]]:
    """Returns the arguments of the call that the query reads from, by name; positional ones by their place."""
    called = next(iter(called_in_from(query)), "")
    start = query.find("(", query.find(called)) + 1
    names = [] if spec is None else [parameter.name for parameter in spec.parameters]
    passed = []
    for place, text in enumerate(parts(query[start : query.rfind(")")]) if called else ()):
        match = _PASSED.match(text)
        passed.append((match[1], match[2].strip()) if match else (names[place] if place < len(names) else "", text))
    return passed
