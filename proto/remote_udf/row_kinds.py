"""RowKind: what a row of a changelog does to the table it describes (FLIP-491, Flink's RowKind)."""

from enum import StrEnum

import pyarrow as pa

from remote_udf.errors import ProtocolViolation

__all__ = ["ROW_KIND", "RowKind"]

ROW_KIND = "row_kind"
"""Name of the column that makes a DataFrame a changelog."""


class RowKind(StrEnum):
    """Kinds of change, as people write them."""

    INSERT = "+I"
    UPDATE_BEFORE = "-U"
    UPDATE_AFTER = "+U"
    DELETE = "-D"

    @property
    def code(self) -> int:
        """The byte Flink and the wire use."""
        return _CODES[self]

    @property
    def is_retract(self) -> bool:
        """The row is retracted: -U and -D."""
        return self in (RowKind.UPDATE_BEFORE, RowKind.DELETE)

    @property
    def is_accumulate(self) -> bool:
        """The row is added: +I and +U."""
        return not self.is_retract

    @classmethod
    def of(cls, code: int) -> "RowKind":
        """The kind of a code. Raises ProtocolViolation."""
        if (kind := _KINDS.get(code)) is None:
            raise ProtocolViolation(f"row kind {code}: expected a code from 0 to {len(_KINDS) - 1}")
        return kind


CODE_TYPE = pa.int8()
_KINDS = dict(enumerate(RowKind))
_CODES = {kind: code for code, kind in _KINDS.items()}
