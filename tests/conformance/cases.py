"""A case in one shape: its functions in words, its tables, its query and what it expects."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.compare import Change, end_state

_KEPT = re.compile(r"\bwatermarks?\b[^.;]*\b(?:kept|persist\w*|restored|included|part of)\b", re.IGNORECASE)
_NOT_KEPT = re.compile(
    r"\b(?:not|no|never|without|nor)\b[^.;]*\bwatermarks?\b|\bwatermarks?\b[^.;]*\b(?:not|never)\b", re.I
)

__all__ = ["Case", "FunctionWords", "Table"]


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
        """Whether it is a function of the engine, listed for the reader."""
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
    """One case. `raw` is the object of the file, for fields of only one kind; `expectation` is what it asserts."""

    id: str
    file: str
    query: str
    functions: tuple[FunctionWords, ...]
    tables: tuple[Table, ...]
    expectation: Mapping[str, Any] = field(default_factory=dict, hash=False)
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    variants: tuple[Mapping[str, Any], ...] = ({},)
    setup: tuple[str, ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    """The statements that give rows, by the sink of each, "" if it has none; the last one is the query."""
    mode: str = ""
    """"batch", "streaming" or "both"; "" if the case does not say."""
    raw: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False, repr=False)

    @property
    def expected(self) -> Mapping[str, Any]:
        """The object `expected`, empty if there is none."""
        return self.expectation.get("expected") or {}

    @property
    def kind(self) -> str:
        """`expected.kind`, or else "error", "rows" or "", depending on what is asserted."""
        if self.expected.get("kind"):
            return str(self.expected["kind"])
        if self.error is not None:
            return "error"
        return "rows" if "rows" in self.expected else ""

    @property
    def error(self) -> str | None:
        """The gist of the message that is expected; None if no error is."""
        inside = self.expected.get("error") or {}
        found = self.expected.get("message_contains") or (
            inside if isinstance(inside, str) else inside.get("message_contains")
        )
        return self.expectation.get("expected_error") or found

    @property
    def modes(self) -> frozenset[str]:
        """What the case asks for: "batch", "stream" or both; empty if it does not say."""
        config = self.config
        found = self.mode or config.get("mode") or config.get("runtime_mode") or config.get("execution.runtime-mode")
        known = {"both": {"batch", "stream"}, "streaming": {"stream"}, "batch": {"batch"}}
        modes = known.get(str(found).lower(), ())
        return frozenset({*modes, "batch"} if modes and self.batch_equivalent is not None else modes)

    @property
    def batch_equivalent(self) -> Any:
        """What the case says of a batch with the same result: a query, or rows; None if it says nothing."""
        return self.raw.get("batch_equivalent", self.expected.get("batch_equivalent"))

    @property
    def keeps_watermarks(self) -> bool:
        """Whether a restart keeps watermarks, which Flink's do not, unless the case says so."""
        told = str(self.config.get("restore") or "")
        return _KEPT.search(told) is not None and _NOT_KEPT.search(told) is None

    @property
    def row_phases(self) -> list[str | None]:
        """The phases in which the rows of the only table come; empty if the case does not say."""
        rows = self.tables[0].raw.get("rows") or () if len(self.tables) == 1 else ()
        told = [row.get("phase") if isinstance(row, Mapping) else None for row in rows]
        return told if any(told) else []

    @property
    def phases(self) -> list[tuple[str, Any]]:
        """The rows before and after a restart, by the name of the phase, as the case expects them."""
        given = self.expected.get("phases") or []
        return [each for one in (given if isinstance(given, list) else [given]) for each in one.items()]
