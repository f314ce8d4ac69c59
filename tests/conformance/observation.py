"""Observation: all recorded results of a case. Judging reads nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EQUIVALENT", "Emitted", "Failure", "Observation", "Run"]

EQUIVALENT = "its batch equivalent"
"""`Run.under` of the query that a case gives for a batch."""


@dataclass(frozen=True)
class Failure:
    """A failure; `planning` if no function had been called and no row had been read before it."""

    message: str
    planning: bool
    kind: str = ""


@dataclass(frozen=True)
class Emitted:
    """An emitted row: its kind of change, and the event or the phase of the input after which it was emitted."""

    values: Sequence[Any]
    kind: str = "+I"
    after: int | None = None
    phase: str | None = None


@dataclass
class Run:
    """One run. `how` is batch, stream, changelog (the changes of an aggregate), harness or script.

    `columns` are names and Spark types; `keys` counts the columns of a changelog that tell rows apart.
    """

    how: str
    columns: Sequence[tuple[str, str]] | None = None
    named: Sequence[str] = ()
    """As in an observation, where the columns are not in the order of the query."""
    rows: Sequence[Emitted] | None = None
    failure: Failure | None = None
    has_kinds: bool = False
    keys: int = 0
    upsert_key: Sequence[int] | None = None
    """The places of the columns by which a row replaces another one, if the changes are upserts."""
    zone: str = "UTC"
    under: str = ""
    """The variant of the configuration, as text."""
    calls: int | None = None
    elapsed_ms: float | None = None
    max_open: int | None = None
    before_restart: int | None = None
    late_rows: int | None = None


@dataclass
class Observation:
    """`found` has the shape of the expectation, with the actual values."""

    runs: list[Run] = field(default_factory=list)
    modes: frozenset[str] = frozenset()
    """The modes that the case asks for: batch, stream; empty if it does not say."""
    found: dict[str, Any] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    """How many rows there are of what calls are counted by: "row", "left row", "joined row"."""
    written_calls: Sequence[str] = ()
    """The calls that the query has, as it has them."""
    null_times: int | None = None
    """Input rows without a time."""
    truncated: bool = False
    """The query averages integers, which the language of the cases truncates."""
    applied: bool = False
    """The case compares the table that a changelog produces."""
    takes_deletes: bool = False
    """The case allows a -D for a -U."""
    starred: str = "alias"
    """What the names behind a star come from: "alias" if from the function that is called, else "column"."""
    named: Sequence[str] = ()
    """By column, what the query has for it: alias, column or expression; empty if that is not to be read from it."""
    names: Mapping[str, str] = field(default_factory=dict)
    """From the names of bound functions to the names that the case gives them."""
    own_messages: Sequence[str] = ()
    """What the case's functions say when they fail."""
    refusal: str = ""
    """The product's own statement that it does not do this, where a declared capability foresees it."""
    compared: int = 0
    """Rows that were compared with something else than the expectation: with the same functions, run locally."""
    contradictions: list[str] = field(default_factory=list)
    """What is wrong whatever the case expects."""
    notes: list[str] = field(default_factory=list)
