"""Table arguments of process table functions: their traits, some of which depend on the call (FLIP-440, FLIP-565)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from remote_udf.arrow import read_schema, write_schema
from remote_udf.errors import ProtocolViolation
from remote_udf.row_kinds import ChangelogMode
from remote_udf.v1 import function_pb2 as pb

__all__ = ["ArgumentTrait", "ConditionalTrait", "ProcessSignature", "TableArgument", "state_field", "with_conditional"]

_HAS_PARTITION_BY = "has_partition_by"
_CONDITIONAL = re.compile(r"(\w+) (when|unless) (\{.*\})")
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
    NOTIFY_STATEFUL_SETS = "NOTIFY_STATEFUL_SETS"
    """For a broadcast table: after each row, `eval` is called again for each key that has state, with this row."""

    def when(self, **conditions: object) -> "ConditionalTrait":
        """The trait of a table in calls for which all conditions hold.

        Args:
            **conditions: `has_partition_by=True`: the table has PARTITION BY. `argument=value`: the call passes this
                value, a bool, an int or a text, for the scalar argument; None: it passes none.

        A trait that says what kind of table it is, such as SET_SEMANTIC_TABLE, replaces that of other calls.
        """
        return ConditionalTrait(self, tuple(sorted(conditions.items())))

    def unless(self, **conditions: object) -> "ConditionalTrait":
        """The trait of a table in calls for which not all conditions hold; see `when`."""
        return ConditionalTrait(self, tuple(sorted(conditions.items())), negated=True)


SEMANTICS = frozenset({
    ArgumentTrait.ROW_SEMANTIC_TABLE, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.BROADCAST_SEMANTIC_TABLE,
})  # fmt: skip
"""The traits of which a table has one."""


@dataclass(frozen=True)
class ConditionalTrait:
    """A trait that a table has in some calls; `ArgumentTrait.when` and `unless` make it (FLIP-565)."""

    trait: ArgumentTrait
    conditions: tuple[tuple[str, Any], ...]
    negated: bool = False

    def holds(self, scalars: Mapping[str, Any], *, partitioned: bool) -> bool:
        """Whether a table has the trait in a call."""
        met = all(
            (partitioned if name == _HAS_PARTITION_BY else scalars.get(name)) == value
            for name, value in self.conditions
        )
        return met is not self.negated

    @property
    def arguments(self) -> list[str]:
        """The scalar arguments on which the trait depends."""
        return [name for name, _ in self.conditions if name != _HAS_PARTITION_BY]

    def __str__(self) -> str:
        return f"{self.trait} {'unless' if self.negated else 'when'} {json.dumps(dict(self.conditions))}"


def with_conditional(
    traits: frozenset[ArgumentTrait], conditional: Sequence[ConditionalTrait]
) -> frozenset[ArgumentTrait]:  # fmt: skip
    """The traits of a table for which these conditional ones hold, too."""
    more = {each.trait for each in conditional}
    return (traits - SEMANTICS if more & SEMANTICS else traits) | more


def _trait_of(text: str) -> ArgumentTrait | ConditionalTrait:
    """Read the text of a trait. Raises ProtocolViolation for an unknown one."""
    found = _CONDITIONAL.fullmatch(text)
    name = text if found is None else found[1]
    try:
        trait = ArgumentTrait[name]
        if found is None:
            return trait
        name = text
        return ConditionalTrait(trait, tuple(json.loads(found[3]).items()), negated=found[2] == "unless")
    except (KeyError, ValueError):
        raise ProtocolViolation(f"table trait {name[:100]!r} is unknown to this version") from None


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
        tables = []
        for table in message.tables:
            traits = [_trait_of(text) for text in table.traits]
            always = frozenset(each for each in traits if isinstance(each, ArgumentTrait))
            conditional = tuple(each for each in traits if isinstance(each, ConditionalTrait))
            row = pa.struct(list(read_schema(table.row))) if table.row else None
            tables.append(TableArgument(table.name, always, row, conditional))
        return cls(
            tuple(tables), read_schema(message.state), read_schema(message.broadcast_state),
            ChangelogMode.from_proto(message.changelog_mode),
        )  # fmt: skip


def state_field(name: str, type_: pa.DataType, time_to_live: int | None) -> pa.Field:
    """The field of a state entry; its time-to-live is in milliseconds."""
    told = None if time_to_live is None else {_TIME_TO_LIVE: str(time_to_live).encode()}
    return pa.field(name, type_, metadata=told)
