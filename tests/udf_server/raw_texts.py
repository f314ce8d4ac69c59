"""Columns with texts that are not UTF-8, as Spark sends them, for the tests of those."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from remote_udf.raw_texts import replaced

__all__ = ["BAD", "column"]

BAD = b"caf\xe9"
"""In ISO-8859-1, and not UTF-8."""


def column(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """A column of the type from values with bytes in place of texts, made by IPC because Arrow refuses others."""
    raw = pa.array(values, replaced(type_, pa.string(), pa.binary()))
    message = pa.RecordBatch.from_arrays([raw], ["c"]).serialize()
    return pa.ipc.read_record_batch(message, pa.schema([("c", type_)])).column(0)
