"""RowKind: how a row of a changelog changes the table that it describes (FLIP-491, Flink's RowKind)."""

from enum import StrEnum

import pyarrow as pa

from remote_udf.errors import ProtocolViolation

__all__ = ["ROW_KIND", "RowKind"]

ROW_KIND = "row_kind"
"""Name of the column that makes a DataFrame a changelog."""


class RowKind(StrEnum):
    """The kind of change of a row, as users write it."""

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
