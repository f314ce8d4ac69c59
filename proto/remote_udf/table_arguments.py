"""Table arguments of process table functions, and changelog modes (FLIP-440)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from remote_udf.argument_traits import ArgumentTrait, ConditionalTrait, trait_named, with_conditional
from remote_udf.arrow import read_schema, write_schema
from remote_udf.row_kinds import RowKind
from remote_udf.v1 import function_pb2 as pb

__all__ = ["ChangelogMode", "ProcessSignature", "TableArgument", "state_field"]

_TIME_TO_LIVE = b"remote_udf.time_to_live"


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
        names = [f"{'~' * (kind is RowKind.DELETE and self.key_only_deletes)}{kind.name}" for kind in self.kinds]
        return f"[{', '.join(names)}]"

    def to_proto(self) -> pb.ChangelogMode:
        return pb.ChangelogMode(kinds=[kind.code for kind in self.kinds], key_only_deletes=self.key_only_deletes)

    @classmethod
    def from_proto(cls, message: pb.ChangelogMode) -> "ChangelogMode":
        return cls(tuple(RowKind.of(code) for code in message.kinds), message.key_only_deletes)


@dataclass(frozen=True)
class TableArgument:
    """A table among a function's arguments. `row` is the struct of a typed table, whose columns match by position.

    `traits` are those of every call, and after `ProcessSignature.in_call` those of one call.
    """

    name: str
    traits: frozenset[ArgumentTrait]
    row: pa.DataType | None = None
    conditional: tuple[ConditionalTrait, ...] = ()
    declared: frozenset[ArgumentTrait] | None = None
    """The traits of every call, if `traits` are those of one."""

    @property
    def always(self) -> frozenset[ArgumentTrait]:
        """The traits of every call."""
        return self.traits if self.declared is None else self.declared

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

    def in_call(self, partitioned: Mapping[str, bool], scalars: Mapping[str, Any]) -> "ProcessSignature":
        """The signature with the traits that its tables have in a call.

        Args:
            partitioned: Whether a table has PARTITION BY, by argument.
            scalars: The scalar arguments that the call passes.
        """
        if not any(table.conditional for table in self.tables):
            return self
        tables = []
        for table in self.tables:
            by_key = partitioned.get(table.name, False)
            met = [each for each in table.conditional if each.holds(scalars, partitioned=by_key)]
            tables.append(replace(table, traits=with_conditional(table.always, met), declared=table.always))
        return replace(self, tables=tuple(tables))

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
                name=table.name, traits=sorted([*table.always, *map(str, table.conditional)]),
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
                frozenset(trait_named(trait) for trait in table.traits if ConditionalTrait.parse(trait) is None),
                pa.struct(list(read_schema(table.row))) if table.row else None,
                tuple(found for trait in table.traits if (found := ConditionalTrait.parse(trait)) is not None),
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
