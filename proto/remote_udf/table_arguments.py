"""Table arguments of process table functions, their traits, and changelog modes (FLIP-440)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from remote_udf.arrow import read_schema, write_schema
from remote_udf.errors import ProtocolViolation
from remote_udf.row_kinds import RowKind
from remote_udf.v1 import function_pb2 as pb

__all__ = ["ArgumentTrait", "ChangelogMode", "ProcessSignature", "TableArgument", "state_field"]

_TIME_TO_LIVE = b"remote_udf.time_to_live"


class ArgumentTrait(StrEnum):
    """What a table argument is, and what it requires of the table that is passed (Flink's ArgumentTrait)."""

    ROW_SEMANTIC_TABLE = "ROW_SEMANTIC_TABLE"
    """Rows are independent of each other: no key, no state, no timers."""
    SET_SEMANTIC_TABLE = "SET_SEMANTIC_TABLE"
    """Rows with the same key are processed together, with the state and timers of the key."""
    BROADCAST_SEMANTIC_TABLE = "BROADCAST_SEMANTIC_TABLE"
    """Every row is sent to every partition; it may only change broadcast state."""
    PASS_COLUMNS_THROUGH = "PASS_COLUMNS_THROUGH"  # noqa: S105 - no password
    """The result has all columns of the table, not only those of the key."""
    OPTIONAL_PARTITION_BY = "OPTIONAL_PARTITION_BY"
    """Without PARTITION BY the whole table has one key."""
    SUPPORT_UPDATES = "SUPPORT_UPDATES"
    """The table may be a changelog."""
    REQUIRE_UPDATE_BEFORE = "REQUIRE_UPDATE_BEFORE"
    """If the table is a changelog, it has -U before +U."""
    REQUIRE_FULL_DELETE = "REQUIRE_FULL_DELETE"
    """-D has the values of all columns, not only those of the key."""
    REQUIRE_ON_TIME = "REQUIRE_ON_TIME"
    """The call must name the column that has the time."""
    ORDERED_BY_TIME = "ORDERED_BY_TIME"
    """The function assumes that rows come in the order of their times: without ORDER BY, Spark orders by on_time."""


@dataclass(frozen=True)
class ChangelogMode:
    """The kinds of change in a changelog. With `key_only_deletes`, a -D has the key's columns and otherwise nulls."""

    kinds: tuple[RowKind, ...] = (RowKind.INSERT,)
    key_only_deletes: bool = False

    @classmethod
    def of(cls, *kinds: RowKind | str, key_only_deletes: bool = False) -> "ChangelogMode":
        """Return a mode of these kinds, in any order."""
        wanted = {RowKind(kind) for kind in kinds}
        return cls(tuple(kind for kind in RowKind if kind in wanted), key_only_deletes)

    @classmethod
    def parse(cls, text: str, *, key_only_deletes: bool = False) -> "ChangelogMode":
        """Parse a mode such as "+I, +U, -D". Raises ValueError for an unknown kind."""
        kinds = [each.strip() for each in text.split(",")]
        known = [kind.value for kind in RowKind]
        for kind in kinds:
            if kind not in known:
                raise ValueError(
                    f"{kind!r} is not a kind of change; write a mode as '+I,+U,-D', with some of {', '.join(known)}"
                )
        return cls.of(*kinds, key_only_deletes=key_only_deletes)

    @property
    def is_insert_only(self) -> bool:
        return self.kinds == (RowKind.INSERT,)

    @property
    def is_upsert(self) -> bool:
        """Whether a +U replaces the row of its key without a -U."""
        return RowKind.UPDATE_AFTER in self.kinds and RowKind.UPDATE_BEFORE not in self.kinds

    def __str__(self) -> str:
        return f"[{', '.join(kind.name for kind in self.kinds)}]"

    def to_proto(self) -> pb.ChangelogMode:
        return pb.ChangelogMode(kinds=[kind.code for kind in self.kinds], key_only_deletes=self.key_only_deletes)

    @classmethod
    def from_proto(cls, message: pb.ChangelogMode) -> "ChangelogMode":
        return cls(tuple(RowKind.of(code) for code in message.kinds), message.key_only_deletes)


@dataclass(frozen=True)
class TableArgument:
    """A table among a function's arguments. `row` is the struct of a typed table, whose columns match by position."""

    name: str
    traits: frozenset[ArgumentTrait]
    row: pa.DataType | None = None

    @property
    def has_set_semantics(self) -> bool:
        return ArgumentTrait.SET_SEMANTIC_TABLE in self.traits

    @property
    def is_broadcast(self) -> bool:
        return ArgumentTrait.BROADCAST_SEMANTIC_TABLE in self.traits

    def has(self, trait: ArgumentTrait) -> bool:
        return trait in self.traits


@dataclass(frozen=True)
class ProcessSignature:
    """The description of a process table function beyond its parameters, on both ends.

    `tables` are in the order of the declaration; their names are among the parameters. `state` has one field
    per state entry, with its type on the wire; `broadcast_state` has those of broadcast state. The metadata of a field
    has its time-to-live, see `state_field`.
    """

    tables: tuple[TableArgument, ...] = ()
    state: pa.Schema = field(default_factory=lambda: pa.schema([]))
    broadcast_state: pa.Schema = field(default_factory=lambda: pa.schema([]))
    changelog_mode: ChangelogMode = field(default_factory=ChangelogMode)

    def table(self, name: str) -> TableArgument | None:
        return next((table for table in self.tables if table.name == name), None)

    @property
    def times_to_live(self) -> Sequence[int | None]:
        """The time-to-live of each entry of `state`, in milliseconds; None if it has none."""
        found = ((field.metadata or {}).get(_TIME_TO_LIVE) for field in self.state)
        return [None if each is None else int(each) for each in found]

    @property
    def main_tables(self) -> Sequence[TableArgument]:
        """The tables that are not broadcast."""
        return [table for table in self.tables if not table.is_broadcast]

    @property
    def passes_columns_through(self) -> bool:
        return any(table.has(ArgumentTrait.PASS_COLUMNS_THROUGH) for table in self.tables)

    @property
    def supports_timers(self) -> bool:
        """Whether timers can be used. They need keys, and no columns are passed through, as a timer has no row."""
        main = self.main_tables
        return bool(main) and all(table.has_set_semantics for table in main) and not self.passes_columns_through

    def to_proto(self) -> pb.ProcessSignature:
        tables = [
            pb.TableArgument(
                name=table.name, traits=sorted(table.traits),
                row=write_schema(pa.schema(list(table.row))) if table.row is not None else b"",
            )
            for table in self.tables
        ]  # fmt: skip
        return pb.ProcessSignature(
            tables=tables, state=write_schema(self.state), broadcast_state=write_schema(self.broadcast_state),
            changelog_mode=self.changelog_mode.to_proto(),
        )  # fmt: skip

    @classmethod
    def from_proto(cls, message: pb.ProcessSignature) -> "ProcessSignature":
        tables = tuple(
            TableArgument(
                table.name,
                frozenset(_trait(trait) for trait in table.traits),
                pa.struct(list(read_schema(table.row))) if table.row else None,
            )
            for table in message.tables
        )
        return cls(
            tables, read_schema(message.state), read_schema(message.broadcast_state),
            ChangelogMode.from_proto(message.changelog_mode),
        )  # fmt: skip


def state_field(name: str, type_: pa.DataType, time_to_live: int | None) -> pa.Field:
    """The field of a state entry; its time-to-live is in milliseconds."""
    told = None if time_to_live is None else {_TIME_TO_LIVE: str(time_to_live).encode()}
    return pa.field(name, type_, metadata=told)


def _trait(name: str) -> ArgumentTrait:
    try:
        return ArgumentTrait[name]
    except KeyError:
        raise ProtocolViolation(f"table trait {name[:100]!r} is unknown to this version") from None
