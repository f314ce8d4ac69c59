"""Results of the test kit: values, and the errors of rows and segments without one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from remote_udf.outcomes import RowError
from remote_udf.v1 import message_pb2 as pb
from udf_server.aggregate.segments import BundledKeySegmentApplied

__all__ = ["AppliedResult", "RunResult"]


@dataclass(frozen=True)
class RunResult:
    """Outcomes of rows. `values` has one value per row; that of a failed row is null, and `errors` has its error."""

    values: pa.Array
    errors: Mapping[int, RowError]
    counts: pb.StreamCounts

    def to_pylist(self) -> list[Any]:
        """Return the values. Raises AssertionError, with the first error, if a row failed."""
        _refuse_errors(self.errors, "row")
        return self.values.to_pylist(maps_as_pydicts="strict")


@dataclass(frozen=True)
class AppliedResult:
    """Outcomes of segments. `applied` has one per segment; that of a failed one is None, and `errors` has its error.

    Parts that were not requested are None.
    """

    applied: Sequence[BundledKeySegmentApplied | None]
    errors: Mapping[int, RowError]
    counts: pb.StreamCounts

    def to_list(self) -> list[BundledKeySegmentApplied]:
        """Return the applied segments. Raises AssertionError, with the first error, if a segment failed."""
        _refuse_errors(self.errors, "segment")
        return [each for each in self.applied if each is not None]


def _refuse_errors(errors: Mapping[int, RowError], what: str) -> None:
    for row, error in sorted(errors.items()):
        raise AssertionError(f"{what} {row}: {error.code}: {error.message}\n{error.traceback}")
