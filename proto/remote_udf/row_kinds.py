"""RowKind and ChangelogMode: how rows of a changelog change the table that it describes (FLIP-491, FLIP-440)."""

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from remote_udf.errors import ProtocolViolation
from remote_udf.v1 import function_pb2 as pb

__all__ = ["ROW_KIND", "ChangelogMode", "RowKind"]

ROW_KIND = "row_kind"
"""Name of the column that makes a DataFrame a changelog."""


class RowKind(StrEnum):
    """The kind of change of a row, as users write it (Flink's RowKind)."""

    INSERT = "+I"
    UPDATE_BEFORE = "-U"
    UPDATE_AFTER = "+U"
    DELETE = "-D"

    @property
    def code(self) -> int:
        """The byte that Flink and the wire use."""
        return _CODES[self]

    @property
    def is_retract(self) -> bool:
        """Whether the row is retracted: -U and -D."""
        return self in (RowKind.UPDATE_BEFORE, RowKind.DELETE)

    @property
    def is_accumulate(self) -> bool:
        """Whether the row is added: +I and +U."""
        return not self.is_retract

    @classmethod
    def of(cls, code: int) -> "RowKind":
        """Return the kind of a code. Raises ProtocolViolation for an unknown code."""
        if (kind := _KINDS.get(code)) is None:
            raise ProtocolViolation(f"row kind {code}: expected a code from 0 to {len(_KINDS) - 1}")
        return kind


CODE_TYPE = pa.int8()
_KINDS = dict(enumerate(RowKind))
_CODES = {kind: code for code, kind in _KINDS.items()}


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
