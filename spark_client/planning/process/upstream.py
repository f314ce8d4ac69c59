"""What is known of the streams that a call takes, such as their watermark, or other calls with state on them."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakValueDictionary

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from remote_udf.process_calls import ProcessCall
from remote_udf.table_arguments import ProcessSignature
from spark_client.base.errors import PlanError
from spark_client.base.explained_plans import analyzed_plan
from spark_client.base.identifiers import column_named
from spark_client.executor.process.plan import OutputSource, ProcessPlan
from spark_client.windows.columns import TIMED, WATERMARK

__all__ = ["StreamUids", "Upstream", "emits_by_watermark", "is_watermarked", "warn_of_times"]

log = logging.getLogger(__name__)
UIDS = "remote_udf.uids"
"""The functions with state through which rows have passed: the id of the call by uid."""
WATERMARKED = "remote_udf.watermarked"
"""Whether a watermark passes through a function, even if no column of the result has the time."""
_NODE = re.compile(r"(?P<branches>(?:[ :|]  )*(?:[:+]- )?)(?P<node>\S.*)")
_UNMATCHED = re.compile(r"~Join (LeftOuter|RightOuter|FullOuter)\b")


@dataclass(frozen=True)
class Upstream:
    """What the streams of one call declare in the metadata of their columns.

    `delay` is the watermark delay of the result's time in milliseconds, or None.
    """

    uids: Mapping[str, str]
    shared: tuple[str, ...]
    """The uids that several earlier calls share."""
    has_watermark: bool
    delay: int | None
    rows_first: bool
    """Whether the watermark of a micro-batch makes rows of its input."""
    emits_by_watermark: bool
    """Whether the call emits rows because the watermark advances."""

    @classmethod
    def of(cls, process: ProcessCall, signature: ProcessSignature, frames: Sequence[DataFrame]) -> "Upstream":
        streams = [frame for frame in frames if frame.isStreaming]
        metadata = [field.metadata for frame in streams for field in frame.schema.fields]
        pairs = {(uid, call) for each in metadata for uid, call in each.get(UIDS, {}).items()}
        uids = dict(sorted(pairs))
        delays = [
            frame.schema[table.schema.names[table.time_column]].metadata.get(WATERMARK)
            for frame, table in zip(frames, process.tables, strict=True)
            if frame.isStreaming and table.time_column >= 0
        ]
        known = [delay for delay in delays if delay is not None]
        has_watermark = any(is_watermarked(field) for frame in streams for field in frame.schema.fields)
        by_watermark = signature.supports_timers or any(table.order_by for table in process.tables)
        return cls(
            uids,
            tuple(sorted({uid for uid, call in pairs if uids[uid] != call})),
            has_watermark,
            max(known) if known and len(known) == len(delays) else None,
            # Rows that Spark's own operators emit are not marked.
            any(each.get(TIMED) for each in metadata)
            or (has_watermark and by_watermark and any(map(emits_by_watermark, streams))),
            by_watermark,
        )

    def require_distinct(self, function: str, uid: str | None) -> None:
        """Raises PlanError if an earlier call has the uid of this one, or if two earlier calls share one."""
        if self.shared:
            raise PlanError(
                f"function {function}: Duplicate unique identifier {self.shared[0]!r}: several calls on the streams "
                "that meet here have it. Give each call its own, such as uid='second'"
            )
        if uid in self.uids:
            raise PlanError(
                f"function {function}: Duplicate unique identifier {uid!r}: a function before it on the same stream "
                "has it, too. Give each call its own, such as uid='second'"
            )

    def marked(self, frame: DataFrame, plan: ProcessPlan, uid: str | None) -> DataFrame:
        """The result with the metadata of these streams in its columns; the watermark is that of its time column."""
        shared = {
            WATERMARKED: self.has_watermark,
            TIMED: self.rows_first or (uid is not None and self.emits_by_watermark),
        }
        uids = {**self.uids, **({} if uid is None else {uid: plan.call.operation_id})}
        columns = []
        for (source, _), field in zip(plan.output, plan.schema, strict=True):
            own = {WATERMARK: self.delay} if source is OutputSource.TIME and self.delay is not None else {}
            metadata = {**shared, **({UIDS: uids} if uids else {}), **own}
            name = field.name
            columns.append(column_named(name).alias(name, metadata=metadata))
        return frame.select(*columns)


def is_watermarked(field: StructField) -> bool:
    """Whether a column has a watermark, or is in the result of a function through which a watermark passes."""
    return WATERMARK in field.metadata or bool(field.metadata.get(WATERMARKED))


def warn_of_times(
    function: str, process: ProcessCall, signature: ProcessSignature, frames: Sequence[DataFrame]
) -> None:  # fmt: skip
    """Warn of streams whose time has no watermark beside one whose time has: timers do not wait for their rows."""
    marked: dict[bool, list[str]] = {True: [], False: []}
    for argument, table, frame in zip(signature.tables, process.tables, frames, strict=True):
        if frame.isStreaming and table.time_column >= 0:
            name = table.schema.names[table.time_column]
            marked[is_watermarked(frame.schema[name])].append(f"{name!r} of table {argument.name!r}")
    if marked[True] and marked[False]:
        log.warning(
            "function %s: the time %s has no watermark, but %s has one: timers wait for that one only, and the time of "
            "the result has no watermark; call withWatermark on each table before the call",
            function, ", ".join(marked[False]), marked[True][0],
        )  # fmt: skip


def emits_by_watermark(frame: DataFrame) -> bool:
    """Whether operators of Spark in the plan of a stream emit rows because the watermark advances.

    Such rows are windows that end, and rows of a join that found no partner. Nothing in the columns of a DataFrame
    tells, so this reads Spark's description of the analyzed plan.
    """
    lines = [_NODE.fullmatch(line) for line in analyzed_plan(frame)]
    nodes = [(len(found["branches"]), found["node"]) for found in lines if found is not None]
    return any(
        node.startswith("~Aggregate ") or (_UNMATCHED.match(node) and _inputs(nodes, place) == [True, True])
        for place, (_, node) in enumerate(nodes)
    )


def _inputs(nodes: list[tuple[int, str]], place: int) -> list[bool]:
    """For each input of a node, whether it is a stream."""
    depth, found = nodes[place][0], []
    for below, node in nodes[place + 1 :]:
        if below <= depth:
            break
        if below == depth + 3:
            found.append(node.startswith(("~", "StreamingRelation")))
    return found


class StreamUids:
    """The calls of one session to which a stream was passed, so that two of them do not share a unique identifier.

    A call is forgotten with its result, so a query that is built again may reuse its uid.

    Streams are distinguished as DataFrame objects, because no public API says whether two DataFrames are the same
    stream. If the results of several calls meet in a later call, their uids are compared there.
    """

    def __init__(self) -> None:
        self._results: WeakKeyDictionary[DataFrame, WeakValueDictionary[str, DataFrame]] = WeakKeyDictionary()
        """The results of calls by stream and uid."""
        self._definitions: WeakKeyDictionary[DataFrame, object] = WeakKeyDictionary()
        """What was called, by result."""

    def result(
        self, function: str, streams: Sequence[DataFrame], uid: str, definition: object, make: Callable[[], DataFrame]
    ) -> DataFrame:
        """The result of a call. Equal calls with one uid share it. Raises PlanError if calls with one uid differ."""
        for stream in streams:
            known = self._results.setdefault(stream, WeakValueDictionary()).get(uid)
            if known is None:
                continue
            if self._definitions[known] == definition:
                return known
            raise PlanError(
                f"function {function}: Duplicate unique identifier {uid!r}: another call on the same stream has it, "
                "too. Give each call its own, such as uid='second'"
            )
        result = make()
        self._definitions[result] = definition
        for stream in streams:
            self._results[stream][uid] = result
        return result
