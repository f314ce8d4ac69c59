"""Cases as files hold them, in one shape.

The files of different kinds spell the same things differently: an error stands in `expected` with
kind `error`, in `expected.error` or in `expected_error`; rows are lists, or objects with a kind. Here a
case is read once, and the modules of the kinds see one shape.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.compare import Change, end_state

__all__ = ["Case", "CaseFile", "Expected", "FunctionWords", "Table", "load_folder"]


@dataclass(frozen=True)
class FunctionWords:
    """A function in words. `arguments` are pairs of name and type as written; `failure` is "" for none."""

    name: str
    kind: str
    arguments: tuple[tuple[str, str], ...]
    returns: str
    behaviour: str
    failure: str = ""
    accumulator: str = ""
    can_retract: bool | None = None
    can_merge: bool | None = None
    """Of aggregates; None where nothing is said."""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)

    @property
    def builtin(self) -> bool:
        """The engine's own, listed for the reader."""
        return self.kind.startswith("builtin")


@dataclass(frozen=True)
class Table:
    """Columns are pairs of name and type as written. Every row has a kind; `changelog` if one is not +I.

    `events`, of tables that a driver script feeds, holds rows, watermarks and clock readings in order.
    `view` is the query of a table that is derived from others.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    changes: tuple[Change, ...]
    changelog: bool = False
    primary_key: tuple[str, ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    view: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)

    def end_state(self) -> list[list[Any]]:
        """The rows the table holds once every change is applied."""
        if not self.changelog:
            return [list(values) for _, values in self.changes]
        names = [name for name, _ in self.columns]
        return end_state(self.changes, [names.index(column) for column in self.primary_key] or None)


@dataclass(frozen=True)
class Expected:
    """What a case asserts. `rows` is the end state of what is a changelog; None if no rows are asserted."""

    kind: str
    rows: tuple[Sequence[Any], ...] | None = None
    ordered: bool = False
    changes: tuple[Change, ...] = ()
    error: str | None = None
    phase: str = ""
    calls: str = ""
    invocations: int | None = None
    columns: tuple[tuple[str, str], ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)


@dataclass(frozen=True)
class Case:
    """One case. `raw` is the object of the file, for what only one kind knows."""

    id: str
    query: str
    functions: tuple[FunctionWords, ...]
    tables: tuple[Table, ...]
    expected: Expected
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    variants: tuple[Mapping[str, Any], ...] = ({},)
    setup: tuple[str, ...] = ()
    mode: str = "both"
    description: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)


@dataclass(frozen=True)
class CaseFile:
    """A file of cases; `broken` says why it, or one of its cases, cannot be read."""

    name: str
    cases: tuple[Case, ...]
    broken: tuple[tuple[str, str], ...] = ()


def load_folder(folder: Path) -> list[CaseFile]:
    """Every .json file of the folder, by name."""
    return [_load_file(path) for path in sorted(folder.glob("*.json"))]


def _load_file(path: Path) -> CaseFile:
    try:
        document = json.loads(path.read_text())
        items = document["cases"] if isinstance(document, dict) else document
        shared = document.get("tables", {}) if isinstance(document, dict) else {}
    except (ValueError, KeyError, TypeError) as error:
        return CaseFile(path.name, (), ((path.name, f"not a file of cases: {type(error).__name__}: {error}"),))
    cases, broken = [], []
    for position, item in enumerate(items):
        try:
            cases.append(_case(item, shared))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            name = item.get("id") if isinstance(item, dict) else None
            broken.append((str(name or f"#{position}"), f"malformed case: {type(error).__name__}: {error}"))
    return CaseFile(path.name, tuple(cases), tuple(broken))


def _case(item: Mapping[str, Any], shared: Mapping[str, Any]) -> Case:
    named = item.get("tables") or {}
    own = {**(item.get("inline_tables") or {}), **(named if isinstance(named, dict) else {})}
    tables = own if isinstance(named, dict) else {name: own.get(name) or shared[name] for name in named}
    setup = item.get("setup") or ()
    functions = item.get("functions") or item.get("function") or ()
    functions = [functions] if isinstance(functions, dict) else functions
    return Case(
        id=str(item["id"]),
        query=item.get("query") or "",
        functions=tuple(_function(function) for function in functions),
        tables=tuple(_table(name, table) for name, table in tables.items()),
        expected=_expected(item),
        config=item.get("config") or {},
        variants=tuple(item.get("config_variants") or ({},)),
        setup=(setup,) if isinstance(setup, str) else tuple(setup),
        mode=item.get("mode") or "both",
        description=str(item.get("description") or ""),
        raw=item,
    )


def _function(item: Mapping[str, Any]) -> FunctionWords:
    failure = str(item.get("failure") or "")
    return FunctionWords(
        name=item["name"],
        kind=str(item.get("kind") or "").strip().lower().replace(" ", "_"),
        arguments=tuple(
            (str(argument["name"]), str(argument["type"])) for argument in item.get("args") or item.get("arguments", ())
        ),
        returns=str(item.get("returns") or item.get("output") or ""),
        behaviour=str(item.get("behaviour") or ""),
        failure="" if failure.strip().lower() in ("none", "no") else failure,
        accumulator=str(item.get("accumulator") or ""),
        can_retract=item.get("can_retract"),
        can_merge=item.get("can_merge"),
        raw=item,
    )


def _table(name: str, item: Mapping[str, Any]) -> Table:
    events = tuple(item.get("events") or ())
    rows = item.get("rows") or [event for event in events if event.get("op") == "row"]
    kinds = item.get("row_kinds")
    changes = [_change(row) for row in rows]
    if kinds:
        changes = [(kind, values) for kind, (_, values) in zip(kinds, changes, strict=True)]
    return Table(
        name=name,
        columns=tuple((column["name"], column["type"]) for column in item.get("columns") or ()),
        changes=tuple(changes),
        changelog=any(kind != "+I" for kind, _ in changes),
        primary_key=tuple(item.get("primary_key") or ()),
        events=events,
        view=str(item.get("view") or ""),
        raw=item,
    )


def _change(row: Any) -> Change:
    if isinstance(row, Mapping):
        values = row.get("values", row.get("row"))
        return str(row.get("kind", row.get("row_kind", "+I"))), list(values or ())
    return "+I", list(row)


def _expected(item: Mapping[str, Any]) -> Expected:
    told = item.get("expected") or {}
    error = told.get("error") or {}
    message = item.get("expected_error") or told.get("message_contains") or error.get("message_contains")
    changes = tuple(_change(row) for row in told.get("changes") or told.get("rows") or ())
    is_changelog = "changes" in told or any(kind != "+I" for kind, _ in changes)
    rows: Sequence[Any] | None = None
    if "final_rows" in told:
        rows = told["final_rows"]
    elif "rows" in told or "changes" in told:
        rows = end_state(changes) if is_changelog else [values for _, values in changes]
    if told.get("kind"):
        kind = str(told["kind"])
    elif message:
        kind = "error"
    else:
        kind = "changelog" if is_changelog else "rows" if rows is not None else "other"
    ordered = told.get("final_rows_ordered", False) if is_changelog else told.get("ordered") is True
    return Expected(
        kind=kind,
        rows=None if rows is None else tuple(rows),
        ordered=bool(ordered),
        changes=changes if is_changelog else (),
        error=message,
        phase=str(told.get("phase") or error.get("raised_at") or ""),
        calls=str(told.get("calls") or "") if not isinstance(told.get("calls"), list) else "",
        invocations=told.get("invocations"),
        columns=tuple((c["name"], c["type"]) for c in item.get("expected_columns") or told.get("columns") or ()),
        raw=told,
    )
