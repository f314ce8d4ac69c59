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

from tests.conformance.checking import CaseError, described, listed, mapping, named, one_of, text
from tests.conformance.compare import Change, end_state
from tests.conformance.told import KINDS, asserted

__all__ = ["Case", "CaseFile", "FunctionWords", "Table", "load_folder"]

ROW_KINDS = ("+I", "-U", "+U", "-D")
MODES = ("batch", "streaming", "both")


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
        return self.kind.startswith("builtin") or "(built-in)" in self.name


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
class Case:
    """One case. `raw` is the object of the file, for what only one kind knows; `expectation` is what it asserts."""

    id: str
    file: str
    query: str
    functions: tuple[FunctionWords, ...]
    tables: tuple[Table, ...]
    expectation: Mapping[str, Any] = field(default_factory=dict, hash=False)
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    variants: tuple[Mapping[str, Any], ...] = ({},)
    setup: tuple[str, ...] = ()
    mode: str = ""
    """"batch", "streaming" or "both"; "" if the case does not say."""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)

    @property
    def expected(self) -> Mapping[str, Any]:
        """The object `expected`, empty if there is none."""
        return self.expectation.get("expected") or {}

    @property
    def kind(self) -> str:
        """`expected.kind`, or "error", "rows" or "" by what is asserted."""
        if self.expected.get("kind"):
            return str(self.expected["kind"])
        if self.error is not None:
            return "error"
        return "rows" if "rows" in self.expected else ""

    @property
    def error(self) -> str | None:
        """The gist of the message that is expected; None if no error is."""
        told = self.expected.get("message_contains") or (self.expected.get("error") or {}).get("message_contains")
        return self.expectation.get("expected_error") or told

    @property
    def modes(self) -> frozenset[str]:
        """What the case asks for: "batch", "stream" or both; empty if it does not say."""
        config = self.config
        told = self.mode or config.get("mode") or config.get("runtime_mode") or config.get("execution.runtime-mode")
        known = {"both": {"batch", "stream"}, "streaming": {"stream"}, "batch": {"batch"}}
        return frozenset(known.get(str(told).lower(), ()))


@dataclass(frozen=True)
class CaseFile:
    """A file of cases; `broken` says which of them, and why, cannot be read."""

    name: str
    cases: tuple[Case, ...]
    broken: tuple[tuple[str, str], ...] = ()


def load_folder(folder: Path) -> list[CaseFile]:
    """Every .json file of the folder, by name."""
    return [_load_file(path) for path in sorted(folder.glob("*.json"))]


def _load_file(path: Path) -> CaseFile:
    try:
        document = json.loads(path.read_text())
        items = listed("cases", document["cases"] if isinstance(document, dict) and "cases" in document else document)
        shared = mapping("tables", document.get("tables") or {}) if isinstance(document, dict) else {}
    except (ValueError, CaseError) as error:
        return CaseFile(path.name, (), ((path.name, f"not a file of cases: {error}"),))
    cases, broken = [], []
    for position, item in enumerate(items):
        name = item.get("id") if isinstance(item, dict) else None
        try:
            cases.append(_case(mapping("case", item), path.name, shared))
        except CaseError as error:
            broken.append((str(name or f"#{position}"), str(error)))
    return CaseFile(path.name, tuple(cases), tuple(broken))


def _case(item: Mapping[str, Any], file: str, shared: Mapping[str, Any]) -> Case:
    given = item.get("tables") or {}
    own = {**mapping("inline_tables", item.get("inline_tables") or {}), **(given if isinstance(given, dict) else {})}
    tables = (
        own if isinstance(given, dict) else {name: own.get(name) or named("tables", name, shared) for name in given}
    )
    setup = item.get("setup") or ()
    functions = item.get("functions") or item.get("function") or ()
    functions = [functions] if isinstance(functions, dict) else listed("functions", list(functions))
    expectation = asserted(item)
    mapping("expected", item.get("expected") or {})
    kind = (item.get("expected") or {}).get("kind")
    if kind is not None:
        one_of("expected.kind", kind, KINDS)
    _check_rows("expected.rows", (item.get("expected") or {}).get("rows"))
    _check_rows("expected.changes", (item.get("expected") or {}).get("changes"))
    _check_columns("expected.columns", (item.get("expected") or {}).get("columns"), typed=False)
    _check_columns("expected_columns", item.get("expected_columns"), typed=False)
    for number, step in enumerate(listed("steps", item.get("steps") or [])):
        text(f"steps[{number}].op", mapping(f"steps[{number}]", step).get("op"))
    return Case(
        id=text("id", item.get("id")),
        file=file,
        query=text("query", item.get("query") or ""),
        functions=tuple(_function(f"functions[{place}]", each) for place, each in enumerate(functions)),
        tables=tuple(_table(name, table) for name, table in tables.items()),
        expectation=expectation,
        config=mapping("config", item.get("config") or {}),
        variants=tuple(listed("config_variants", item.get("config_variants") or [{}])),
        setup=(setup,) if isinstance(setup, str) else tuple(listed("setup", list(setup))),
        mode=one_of("mode", item.get("mode") or "", ("", *MODES)),
        raw=item,
    )


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
    kinds = item.get("row_kinds")
    changes = [_change(row) for row in rows]
    if kinds:
        if len(kinds) != len(changes):
            raise CaseError(f"{where}.row_kinds", f"{len(kinds)} kinds", f"{len(changes)}, one per row")
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
