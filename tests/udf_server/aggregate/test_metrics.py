"""The server's metrics of bundles."""

import pyarrow as pa
import pytest

import udf_server as udf
from tests.udf_server.aggregate_functions import BundledAverage, ClassicAverage, VectorizedAverage
from udf_server import BundledKeySegment as Segment
from udf_server import RowKind
from udf_server.aggregate.declaration import declare_aggregate

every_way = pytest.mark.parametrize(
    "average", [BundledAverage, ClassicAverage, VectorizedAverage], ids=lambda kind: kind.__name__
)


class Waiting(BundledAverage):
    async def bundled_accumulate_retract(self, bundle):
        return [self._applied(segment) for segment in bundle]


class Picky(udf.AggregateFunction):
    """The count; fails for 13."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator, v: int):
        if v == 13:
            raise ValueError(v)
        return accumulator + 1

    def get_value(self, accumulator) -> int:
        return accumulator


def metric(environment, function, name, **labels):
    spec = declare_aggregate(function).spec
    labels = {"function": spec.name, "version": spec.version, **labels}
    return environment.metrics.registry.get_sample_value(name, labels)


@every_way
async def test_bundles_segments_and_rows_by_change_are_counted(environment, average):
    kinds = [RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER]
    await environment.apply(average, [Segment((1,), [(5,), (5,), (6,)], row_kinds=kinds), Segment((2,), [(7,)])])
    await environment.apply(average, [Segment((3,), [(1,), (1,), (1,)])])

    assert metric(environment, average, "udf_applied_rows_total", change="accumulate") == 6
    assert metric(environment, average, "udf_applied_rows_total", change="retract") == 1
    assert metric(environment, average, "udf_bundle_rows_count") == 2
    assert metric(environment, average, "udf_calls_total") == 2
    assert metric(environment, average, "udf_bundle_rows_sum") == 7
    assert metric(environment, average, "udf_bundle_segments_sum") == 3
    assert metric(environment, average, "udf_bundle_segments_count") == 2
    assert metric(environment, average, "udf_rows_total", outcome="ok") == 3


@every_way
async def test_accumulators_count_as_merged_where_a_segment_has_several(environment, average):
    accumulator = declare_aggregate(average).accumulator
    before = accumulator.decode(pa.array([{"sum": 1, "count": 1}] * 3, accumulator.type))
    await environment.apply(average, [Segment((1,), [], before), Segment((2,), [(1,)], before[:1]), Segment((3,), [])])
    assert metric(environment, average, "udf_merged_accumulators_total") == 3


async def test_bundles_of_an_async_function_count_as_well(environment):
    await environment.apply(Waiting, [Segment((1,), [(5,), (6,)])])
    assert metric(environment, Waiting, "udf_applied_rows_total", change="accumulate") == 2


async def test_a_segment_that_failed_counts_nothing_and_its_neighbours_count_once(environment):
    """This holds however often the bundle was called to find the segment."""
    segments = [Segment((key,), [(key,)] * 2) for key in range(10, 18)]
    result = await environment.apply(Picky, segments)
    assert list(result.errors) == [3]
    # Of 8 segments, the halves with the bad one among them, and their other halves.
    assert result.counts.calls == metric(environment, Picky, "udf_calls_total") == 1 + 2 * 3
    assert metric(environment, Picky, "udf_applied_rows_total", change="accumulate") == 14
    assert metric(environment, Picky, "udf_bundle_segments_sum") == 7
    assert metric(environment, Picky, "udf_rows_total", outcome="failed") == 1


async def test_a_scalar_function_has_no_bundles(environment):
    @udf.scalar
    def same(x: int) -> int:
        return x

    await environment.run(same, [1])
    registry = environment.metrics.registry
    assert registry.get_sample_value("udf_rows_total", {"function": "same", "version": "1", "outcome": "ok"}) == 1
    assert registry.get_sample_value("udf_bundle_rows_count", {"function": "same", "version": "1"}) is None
