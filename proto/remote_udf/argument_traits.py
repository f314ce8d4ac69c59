"""Traits of the table arguments of process table functions, some of which depend on the call (FLIP-440, FLIP-565)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from remote_udf.errors import ProtocolViolation

__all__ = ["SEMANTICS", "ArgumentTrait", "ConditionalTrait", "trait_named", "with_conditional"]

_HAS_PARTITION_BY = "has_partition_by"
_CONDITIONAL = re.compile(r"(\w+) (when|unless) (\{.*\})")


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

    @classmethod
    def parse(cls, text: str) -> "ConditionalTrait | None":
        """Read the text of a trait; None if it is not conditional. Raises ProtocolViolation for an unknown trait."""
        found = _CONDITIONAL.fullmatch(text)
        if found is None:
            return None
        try:
            conditions = json.loads(found[3])
        except ValueError:
            raise ProtocolViolation(f"table trait {text[:100]!r} is unknown to this version") from None
        return cls(trait_named(found[1]), tuple(conditions.items()), negated=found[2] == "unless")


def with_conditional(
    traits: frozenset[ArgumentTrait], conditional: Sequence[ConditionalTrait]
) -> frozenset[ArgumentTrait]:  # fmt: skip
    """The traits of a table for which these conditional ones hold, too."""
    more = {each.trait for each in conditional}
    return (traits - SEMANTICS if more & SEMANTICS else traits) | more


def trait_named(name: str) -> ArgumentTrait:
    """The trait of that name. Raises ProtocolViolation if there is none."""
    try:
        return ArgumentTrait[name]
    except KeyError:
        raise ProtocolViolation(f"table trait {name[:100]!r} is unknown to this version") from None
