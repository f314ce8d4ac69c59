"""Files of cases, read into one shape.

Files of different kinds spell the same things differently: an error is in `expected` with kind `error`, in
`expected.error` or in `expected_error`; rows are lists, or objects with a kind. A case that cannot be read is reported
with the field, what was found there and what is expected; the other cases still run.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.cases import Case, FunctionWords, Table
from tests.conformance.checking import CaseError, described, listed, mapping, named, one_of, text
from tests.conformance.column_types import UnknownType, parse_type
from tests.conformance.compare import Change
from tests.conformance.expectation import KINDS
from tests.conformance.fields import asserted
from tests.conformance.statements import statements_of
from tests.conformance.time_names import with_time_names
from tests.conformance.values import parse_value

__all__ = ["CaseFile", "load_folder"]

ROW_KINDS = ("+I", "-U", "+U", "-D")
MODES = ("batch", "streaming", "both")
_TABLE_PASSED = re.compile(
    r"\bFROM\s+(?:TABLE\s*\(\s*)?(?!TUMBLE|HOP|CUMULATE|SESSION)`?\w+\W?\s*\([^()]*\bTABLE\b", re.IGNORECASE
)
_NO_WATERMARKS = re.compile(r"^(?:none|no|never|off|false)\b|\b(?:no|without(?: any)?) watermarks?\b", re.IGNORECASE)
_ERRORS = ("expected_error", "error", "message_contains")
_UNREADABLE = (CaseError, TypeError, KeyError, AttributeError, ValueError, IndexError)
"""What reading an object raises that is not of the shape of a case."""


@dataclass(frozen=True)
class CaseFile:
    """A file of cases; `broken` lists those that cannot be read, and why."""

    name: str
    cases: tuple[Case, ...]
    broken: tuple[tuple[str, str], ...] = ()


def load_folder(folder: Path) -> list[CaseFile]:
    """Every .json file of the folder, by name."""
    return [_load_file(path) for path in sorted(folder.glob("*.json"))]


def _load_file(path: Path) -> CaseFile:
    try:
        document = json.loads(path.read_text("utf-8"))
        items = listed("cases", document.get("cases") if isinstance(document, dict) else document)
        shared = mapping("tables", document.get("tables") or {}) if isinstance(document, dict) else {}
    except ValueError as error:
        return CaseFile(path.name, (), ((path.name, f"not a file of cases: {error}"),))
    cases: dict[str, Case] = {}
    broken = []
    for position, item in enumerate(items):
        name = item.get("id") if isinstance(item, dict) else None
        try:
            case = _case(mapping("case", item), path.name, shared)
            if case.id in cases:
                raise CaseError("id", f"{described(case.id)} a second time", "a name that is its own within the file")
            cases[case.id] = case
        except _UNREADABLE as error:
            why = str(error) if isinstance(error, CaseError) else f"case: {type(error).__name__}: {error}"
            broken.append((str(name or f"#{position}"), why))
    return CaseFile(path.name, tuple(cases.values()), tuple(broken))


def _case(item: Mapping[str, Any], file: str, shared: Mapping[str, Any]) -> Case:
    functions = item.get("functions") or item.get("function") or ()
    functions = [functions] if isinstance(functions, dict) else listed("functions", functions)
    expected = mapping("expected", item.get("expected") or {})
    if expected.get("kind") is not None:
        one_of("expected.kind", expected["kind"], KINDS)
    for name in ("rows", "changes", "final_rows"):
        # Rows by the sink of a statement are read when there are several statements.
        each = expected.get(name)
        for place, rows in each.items() if isinstance(each, Mapping) else [("", each)]:
            _check_rows(f"expected.{name}{place and '.'}{place}", rows)
    _check_columns("expected.columns", expected.get("columns"), typed=False)
    _check_columns("expected_columns", item.get("expected_columns"), typed=False)
    for number, step in enumerate(listed("steps", item.get("steps") or [])):
        text(f"steps[{number}].op", mapping(f"steps[{number}]", step).get("op"))
    variants = listed("config_variants", item.get("config_variants") or [{}])
    setup = item.get("setup") or ()
    setup = [setup] if isinstance(setup, str) else listed("setup", setup)
    words = tuple(
        _function(f"functions[{place}]", _of_tables(mapping(f"functions[{place}]", each), item.get("query")))
        for place, each in enumerate(functions)
    )
    setup = [text(f"setup[{number}]", each) for number, each in enumerate(setup)]
    statements = statements_of(
        text("query", item.get("query") or ""),
        setup,
        words,
        refused=any(name in (*item, *expected) for name in _ERRORS),
    )
    tables = _tables(item, shared)
    return Case(
        id=text("id", item.get("id")),
        file=file,
        query=statements.query,
        functions=words,
        tables=with_time_names(
            [_table(name, _unmarked(name, table, item.get("config") or {})) for name, table in tables.items()],
            [*statements.setup, statements.query, *(text for _, text in statements.shown)],
            [
                str(each["name"])
                for each in (item.get("expected_columns") or expected.get("columns") or ())
                if isinstance(each, Mapping)
            ],
        ),
        expectation=asserted(item, tables),
        config={**mapping("config", item.get("config") or {}), **statements.config},
        variants=tuple(mapping(f"config_variants[{number}]", each) for number, each in enumerate(variants)),
        setup=tuple(statements.setup),
        shown=tuple(statements.shown),
        mode=one_of("mode", item.get("mode") or "", ("", *MODES)),
        raw=item,
    )


def _tables(item: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Returns tables by name: those of the case, or those of the file that the case lists."""
    given = item.get("tables") or {}
    inline = mapping("inline_tables", item.get("inline_tables") or {})
    if isinstance(given, Mapping):
        return {**inline, **given}
    tables = {}
    for place, each in enumerate(listed("tables", given)):
        name = text(f"tables[{place}].name", each.get("name") if isinstance(each, Mapping) else each)
        tables[name] = each if isinstance(each, Mapping) else inline.get(name) or named("tables", name, shared)
    return tables


def _unmarked(name: str, table: Any, config: Mapping[str, Any]) -> Any:
    """Returns the table without a watermark if none is emitted, by all tables or by this one."""
    told = config.get("watermark_emission")
    told = told.get(name) if isinstance(told, Mapping) else told
    emitted = told is None or not _NO_WATERMARKS.search(str(told))
    return table if emitted or not isinstance(table, Mapping) else {**table, "watermark": None}


def _of_tables(function: Mapping[str, Any], query: Any) -> Mapping[str, Any]:
    """Words without a kind describe a process table function if the query passes a table to a call."""
    if "kind" in function or not _TABLE_PASSED.search(str(query)):
        return function
    return {"timers": "none", **function}


def _function(where: str, given: Any) -> FunctionWords:
    item = mapping(where, given)
    failure = str(item.get("failure") or "")
    arguments = [
        mapping(f"{where}.args", each) for each in listed(where, item.get("args") or item.get("arguments") or [])
    ]
    return FunctionWords(
        name=text(f"{where}.name", item.get("name")),
        kind=str(item.get("kind") or "").strip().lower().replace(" ", "_"),
        arguments=tuple(
            (text(f"{where}.args.name", each.get("name")), str(each.get("type") or "")) for each in arguments
        ),
        returns=str(item.get("returns") or item.get("output") or ""),
        behaviour=str(item.get("behaviour") or ""),
        failure="" if failure.strip().lower() in ("none", "no") else failure,
        accumulator=str(item.get("accumulator") or ""),
        can_retract=item.get("can_retract"),
        can_merge=item.get("can_merge"),
        raw=item,
    )


def _table(name: str, given: Any) -> Table:
    where = f"tables.{name}"
    item = mapping(where, given)
    _check_columns(f"{where}.columns", item.get("columns"), typed=True)
    events = tuple(mapping(f"{where}.events", each) for each in listed(where, item.get("events") or []))
    rows = listed(f"{where}.rows", item.get("rows") or [event for event in events if event.get("op") == "row"])
    _check_rows(f"{where}.rows", rows, len(item["columns"]) if item.get("columns") else None)
    changes = [_change(row) for row in rows]
    if kinds := listed(f"{where}.row_kinds", item.get("row_kinds") or []):
        if len(kinds) != len(changes):
            raise CaseError(f"{where}.row_kinds", f"{len(kinds)} kinds", f"{len(changes)}, one per row")
        changes = [(kind, values) for kind, (_, values) in zip(kinds, changes, strict=True)]
    _check_values(where, item.get("columns") or (), changes)
    key = item.get("primary_key") or item.get("upsert_key") or ()
    return Table(
        name=name,
        columns=tuple((column["name"], column["type"]) for column in item.get("columns") or ()),
        changes=tuple(changes),
        changelog=any(kind != "+I" for kind, _ in changes),
        primary_key=(key,) if isinstance(key, str) else tuple(listed(f"{where}.primary_key", key)),
        events=events,
        view=str(item.get("view") or ""),
        raw=item,
    )


def _change(row: Any) -> Change:
    if isinstance(row, Mapping):
        values = row.get("values", row.get("row"))
        return str(row.get("kind", row.get("row_kind", "+I"))), list(values or ())
    return "+I", list(row)


def _check_values(where: str, columns: Sequence[Mapping[str, Any]], changes: Sequence[Change]) -> None:
    types = []
    for place, column in enumerate(columns):
        try:
            types.append(parse_type(text(f"{where}.columns[{place}].type", column["type"])))
        except UnknownType as error:
            raise CaseError(f"{where}.columns[{place}].type", str(error), "a type of Flink's") from None
    for place, (_, values) in enumerate(changes):
        for value, type_ in zip(values, types, strict=False):
            try:
                parse_value(value, type_)
            except (ValueError, TypeError, ArithmeticError):
                raise CaseError(f"{where}.rows[{place}]", described(value), f"a value of type {type_.ddl}") from None


def _check_columns(where: str, given: Any, *, typed: bool) -> None:
    for place, column in enumerate(listed(where, given or [])):
        if isinstance(column, str) and not typed:
            continue
        if not isinstance(column, Mapping) or "name" not in column or (typed and "type" not in column):
            raise CaseError(f"{where}[{place}]", described(column), "an object with name and type")


def _check_rows(where: str, given: Any, width: int | None = None) -> None:
    for place, row in enumerate(listed(where, given or [])):
        values = row.get("values", row.get("row")) if isinstance(row, Mapping) else row
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise CaseError(f"{where}[{place}]", described(row), "a list of values, or an object with kind and values")
        if isinstance(row, Mapping):
            one_of(f"{where}[{place}].kind", row.get("kind", row.get("row_kind", "+I")), ROW_KINDS)
        if width is not None and len(values) != width:
            raise CaseError(f"{where}[{place}]", f"{len(values)} values", f"{width}, one per column")
