"""ProcessPlan has what a task needs to send rows of tables through a process table function."""

import functools
from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa

from remote_udf.process_calls import ProcessCall, segments_schema
from spark_client.base.calls import ProcessTableCall

__all__ = ["OutputSource", "ProcessPlan"]


class OutputSource(Enum):
    """The source of a column of the result."""

    KEY = auto()
    THROUGH = auto()
    """A column of the input row."""
    VALUE = auto()
    """A column of the function's result."""
    TIME = auto()
    ROW_KIND = auto()


@dataclass(frozen=True)
class ProcessPlan:
    """Positions of columns in the input. `table`, `row_kind` and `time` may be missing.

    `rows` has the struct column of each table, which is null in rows of other tables. `output` has the source of each
    column of the result, and its position there. If `by_key` is false, the table has row semantics, and rows may be
    divided anywhere. If `bounded`, the input ends, and all timers fire then.
    """

    call: ProcessTableCall
    keys: tuple[int, ...]
    key_names: tuple[str, ...]
    table: int | None
    row_kind: int | None
    time: int | None
    rows: tuple[int, ...]
    output: tuple[tuple[OutputSource, int], ...]
    schema: pa.Schema
    by_key: bool = True
    bounded: bool = True

    @property
    def process(self) -> ProcessCall:
        assert self.call.process is not None
        return self.call.process

    @functools.cached_property
    def segments(self) -> pa.Schema:
        """The columns of segments."""
        return segments_schema(self.call.spec, self.process)
