"""Queries over windows as the cases have them: their texts and their settings."""

import re
from collections.abc import Sequence

from tests.conformance.binding import Bound
from tests.conformance.cases import Case
from tests.conformance.statements import created_view, statements_of, view_of

__all__ = ["NO_ZONE", "TIME_ZONE", "is_legacy", "is_window_query", "statements", "time_zones", "view_names"]

TIME_ZONE = "spark.sql.session.timeZone"
NO_ZONE = {"spark.sql.timestampType": "TIMESTAMP_NTZ"}
"""Flink's TIMESTAMP has no zone: what `TO_TIMESTAMP` gives, and a type of that name."""
_FUNCTION = re.compile(r"\b(TUMBLE|HOP|CUMULATE|SESSION)\s*\(", re.IGNORECASE)
_LEGACY = re.compile(r"\bGROUP\s+BY\b.*\b(TUMBLE|HOP|SESSION)\s*\((?!\s*(TABLE|DATA)\b)", re.IGNORECASE | re.DOTALL)
_RENAMED = re.compile(r"^(\w+) adds (\w+) AS (\w+) to the table", re.IGNORECASE)


def is_window_query(case: Case) -> bool:
    """Whether the query has a window function."""
    return any(_FUNCTION.search(text) for text in (*case.setup, case.query))


def is_legacy(case: Case) -> bool:
    """Whether it has the older syntax, `GROUP BY TUMBLE(rowtime, ...)`, which FLIP-145 replaces."""
    return _LEGACY.search(case.query) is not None


def statements(case: Case, bound: Sequence[Bound] = ()) -> list[str]:
    """Returns the statements, the query last, with the names of bound functions. Views and tables are temporary.

    A view may be defined only in the notes: "v1 adds rowtime AS window_start to the table". A query in the older
    syntax has its restatement as a window function beside it.
    """
    texts = [*case.setup, case.query]
    if is_legacy(case) and case.raw.get("equivalent_query"):
        told = statements_of(case.raw["equivalent_query"], case.setup, (), refused=False)
        texts = [*told.setup, told.query]
    if (renamed := _RENAMED.match(str(case.raw.get("notes") or ""))) is not None:
        view, column, name = renamed.groups()
        texts.insert(0, view_of(view, f"SELECT *, {column} AS {name} FROM {case.tables[0].name}"))
    for each in bound:
        if each.name.lower() != each.words.name.lower():
            texts = [re.sub(rf"\b{re.escape(each.words.name)}(?=\s*\()", f"`{each.key}`", text) for text in texts]
    return texts


def view_names(case: Case) -> list[str]:
    """Returns the names of the views that a run leaves in the session."""
    views = [created_view(each) for each in statements(case)[:-1]]
    return [*filter(None, views), *(table.name for table in case.tables)]


def time_zones(case: Case) -> list[str]:
    """Returns the session time zones in which a case must run."""
    given = case.config.get("table.local-time-zone") or "UTC"
    return [given] if isinstance(given, str) else list(given)
