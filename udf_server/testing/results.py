"""What a test reads after a call: values, the errors of rows and segments without one, and metrics of plugins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from remote_udf.outcomes import RowError
from remote_udf.v1 import message_pb2 as pb
from udf_server.aggregate.base import BundledKeySegmentApplied
from udf_server.plugins.metrics import PLUGIN_METRICS

__all__ = ["AppliedResult", "RunResult", "metric_value"]


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


def metric_value(sample: str, **labels: object) -> float:
    """The value of a metric of a plugin, in this process since its start. Compare the values before and after a call.

    Args:
        sample: A name as Prometheus has it: a counter's ends with `_total`, a histogram has `_count` and `_sum`.
        **labels: Values of labels, `function` and `version` among them. Series that differ in others are added.

    Returns:
        The sum; 0.0 if nothing was counted.
    """
    wanted = {label: str(value) for label, value in labels.items()}
    return sum(
        each.value
        for metric in PLUGIN_METRICS.collect()
        for each in metric.samples
        if each.name == sample and wanted.items() <= each.labels.items()
    )
