"""Plans streams with keys: buckets of keys in Spark's transformWithState.

    rows ─ mapInArrow: packed by bucket ─ groupBy(bucket).transformWithState ─ mapInArrow: rows of the result

Spark manages state, timers and watermark; one call of the server contains all keys of a bucket.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_client.base.calls import ProcessTableCall
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import hidden
from spark_client.executor.packed_batches import unpacked
from spark_client.executor.process.plan import ProcessPlan, StatePlan
from spark_client.executor.process.state.packing import packed_for_call
from spark_client.executor.process.state.processor import BucketProcessor
from spark_client.planning.operators import apply_operator
from spark_client.planning.process.upstream import Upstream

__all__ = ["StateSettings", "require_streams", "with_state"]

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PACKED_BATCHES = "bucket int, part int, place long, rows binary"


@dataclass(frozen=True)
class StateSettings:
    """The identifier under which state is kept, the number of its buckets, and the time zone of windows in it."""

    uid: str
    buckets: int
    zone: str | None = None


def require_streams(call: ProcessTableCall, tables: Sequence[tuple[DataFrame, bool]]) -> None:
    """Raises PlanError unless the main tables (true) are streams and the broadcast tables are not."""
    assert call.spec.process is not None
    for argument, (frame, is_main) in zip(call.spec.process.tables, tables, strict=True):
        if frame.isStreaming == is_main:
            continue
        if is_main:
            raise PlanError(
                f"function {call.spec.key}: table {argument.name!r} is bounded and another one is a stream: "
                "either all tables that are not broadcast are streams, or none"
            )
        raise PlanError(
            f"function {call.spec.key}: broadcast table {argument.name!r} is a stream, which is not supported: "
            "pass a bounded DataFrame, whose rows are read when the query is planned"
        )


def with_state(
    base: DataFrame, plan: ProcessPlan, schema: StructType, upstream: Upstream, settings: StateSettings
) -> DataFrame:
    """Return the result over rows with a key. Raises PlanError if the state store is not RocksDB."""
    spec, session = plan.call.spec, base.sparkSession
    # Without a default, Spark returns its own if the setting was never set.
    provider = str(session.conf.get(PROVIDER))
    if not provider.endswith("RocksDBStateStoreProvider"):
        raise PlanError(
            f"function {spec.key}: on a stream its state is in Spark's RocksDB state store, found {provider}: "
            f"spark.conf.set({PROVIDER!r}, {ROCKSDB!r})"
        )
    keys = [F.col(base.columns[position]) for position in plan.keys]
    hashed = F.xxhash64(*keys) if keys else F.lit(0).cast("long")
    buckets = settings.buckets if keys else 1
    state = StatePlan(
        plan, settings.uid, buckets, len(base.columns), has_watermark=upstream.has_watermark,
        rows_first=upstream.rows_first, zone=settings.zone,
    )  # fmt: skip

    call = (plan.call.operation_id, buckets, state.expires)
    packed_batches = apply_operator(
        base.select("*", hashed.alias(hidden("hash"))), packed_for_call, call, PACKED_BATCHES
    )
    # With processing time Spark runs micro-batches without end, so a query with an availableNow trigger would not stop.
    time_mode = "eventTime" if upstream.has_watermark else "none"
    processed = packed_batches.groupBy("bucket").transformWithState(
        BucketProcessor(state), "rows binary", "append", time_mode
    )  # fmt: skip
    return processed.mapInArrow(unpacked, schema)
