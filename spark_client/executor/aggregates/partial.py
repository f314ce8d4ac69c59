"""Partial aggregation inside mapInArrow: rows become segments, segments become accumulators.

Every bundle is by itself, so that many are under way at once; that the same key comes out of several
bundles is what the merge after the shuffle is for.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa

from spark_client.executor.aggregates.bundles import Bundle, PartialPlan, bundle_of, output_of, planned_calls
from spark_client.executor.aggregates.cutting import tables_of
from spark_client.executor.aggregates.segments import group_by_key
from spark_client.executor.engine import OpenStream, RowEngine
from spark_client.executor.opening import open_stream

__all__ = ["map_partial"]


def map_partial(
    plan: PartialPlan, batches: Iterator[pa.RecordBatch], opening: OpenStream = open_stream
) -> Iterator[pa.RecordBatch]:
    """Input batches to output batches. Raises FunctionFailed, and what streams raise."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    engine = RowEngine(planned_calls(plan), opening, ordered=True, merging=False)
    under_way: deque[Bundle] = deque()
    with ExitStack() as cleanup:
        cleanup.callback(engine.close)
        engine.open(_grouped(plan, pa.Table.from_batches([first.slice(0, 1)])).batch(plan).schema)
        bounds = engine.bundles()

        def bundles() -> Iterator[pa.RecordBatch]:
            for table in tables_of(itertools.chain([first], batches), bounds.size, bounds.allow_latency):
                bundle = _grouped(plan, table)
                under_way.append(bundle)
                yield bundle.batch(plan)

        for completed in engine.run(bundles()):
            yield from output_of(plan, under_way.popleft(), completed)


def _grouped(plan: PartialPlan, table: pa.Table) -> Bundle:
    keys = [table.column(key) for key in plan.keys]
    return bundle_of(plan, table, group_by_key(keys, table.num_rows))
