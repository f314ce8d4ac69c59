"""FunctionEnvironment: runs functions as a server would, without one."""

import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from remote_udf.options import AGGREGATE_OPTIONS, canonical
from remote_udf.row_kinds import RowKind
from remote_udf.segments import AppliedField
from udf_server.aggregate.base import AggregateFunction
from udf_server.aggregate.declaration import Aggregate, declare_aggregate
from udf_server.aggregate.segments import BundledKeySegment, BundledKeySegmentApplied
from udf_server.base.functions import Function
from udf_server.base.metrics import ServerMetrics
from udf_server.base.values import Codec, ListCodec
from udf_server.hosting.function_host import FunctionHost
from udf_server.hosting.registry import Registry
from udf_server.streams.accounting import StreamLimits
from udf_server.streams.execute_stream import ExecuteStream
from udf_server.testing.bundling import Rows, bundles_of
from udf_server.testing.columns import argument_column, segment_columns
from udf_server.testing.exchange import Exchange
from udf_server.testing.results import AppliedResult, RunResult

__all__ = ["FunctionEnvironment"]

AggregateGiven = Aggregate | AggregateFunction | type[AggregateFunction]


class FunctionEnvironment:
    """Runs functions as a server would, with their options, hooks and deadlines, but without one.

    ```python
    async with FunctionEnvironment() as environment:
        result = await environment.run(geocode, ["Main St 1", None], timeout="1 s")
        assert result.to_pylist() == [{"lat": 1.0, "lon": 2.0}, None]
        assert await environment.aggregate(Median, [1.0, 2.0, 4.0], keys=["a", "a", "b"]) == {"a": 1.5, "b": 4.0}
    ```
    """

    def __init__(self, *, seed: int = 0, message_bytes: int = 64 << 20) -> None:
        """`seed` is for the jitter of retries."""
        self._random = random.Random(seed)
        self._limits = StreamLimits(message_bytes=message_bytes)
        self._metrics = ServerMetrics()
        self._declared: dict[int, Aggregate] = {}
        self._hosts: dict[int, FunctionHost] = {}

    async def __aenter__(self) -> "FunctionEnvironment":
        return self

    async def __aexit__(self, *exception: object) -> None:
        for host in self._hosts.values():
            await host.close()

    async def run(
        self,
        function: Function,
        *arguments: Any,
        rows: int | None = None,
        batch_rows: int | None = None,
        **options: Any,
    ) -> RunResult:
        """Calls the function for every row of the arguments: a list or Arrow array each, of one length.

        `rows` is needed for a function without arguments only. `batch_rows` cuts the input into
        batches of this many rows, as a client might. Options are those of a call. Outcomes are in the
        order of the rows, whatever the output mode.

        Raises StreamError for what a server refuses: wrong arguments or options, a hook that fails;
        TypeError for an aggregate function.
        """
        if isinstance(function, Aggregate):
            raise TypeError(f"function {function.spec.key} is an aggregate function: use apply or aggregate")
        if arguments and len({len(argument) for argument in arguments}) > 1:
            raise ValueError(f"arguments of different lengths: {[len(argument) for argument in arguments]}")
        columns = [argument_column(function, position, argument) for position, argument in enumerate(arguments)]
        count = len(columns[0]) if columns else rows or 0
        exchange = Exchange(
            function.spec, {f"a{index}": column for index, column in enumerate(columns)}, count,
            batch_rows=batch_rows or min(max(count, 1), self._limits.unanswered_rows),
            options=canonical(options, source="FunctionEnvironment.run"),
        )  # fmt: skip
        return await self._exchanged(function, exchange)

    async def apply(
        self,
        function: AggregateGiven,
        segments: Sequence[BundledKeySegment],
        *,
        applied: Sequence[AppliedField] = tuple(AppliedField),
        key: str | pa.DataType | None = None,
        **options: Any,
    ) -> AppliedResult:
        """Applies one bundle of segments with an aggregate function: a class, an instance or what was declared of one.

        `applied` says what is wanted of each segment; values after each row only of those that ask for
        them. `key` gives the types of the key's columns as DDL, such as "id bigint, day date", where
        the ones Arrow sees in the values will not do. Options are those of a call.

        Raises StreamError for what a server refuses, DeclarationError for a function that is not sound.
        """
        aggregate = self._aggregate(function)
        wanted = [
            each for each in AppliedField
            if each in applied
            and (each is not AppliedField.UPDATED_VALUES or any(s.updated_values_after_each_row for s in segments))
        ]  # fmt: skip
        columns = segment_columns(aggregate, segments, key)
        text = canonical(options, source="FunctionEnvironment.apply", known=(AGGREGATE_OPTIONS,))
        exchange = Exchange(
            aggregate.spec, columns, len(segments), batch_rows=max(len(segments), 1), options=text, applied=wanted
        )
        result = await self._exchanged(aggregate, exchange)
        return AppliedResult(_applied(aggregate, segments, wanted, result), result.errors, result.counts)

    async def aggregate(
        self,
        function: AggregateGiven,
        rows: Rows,
        *,
        keys: Sequence[Hashable] | None = None,
        row_kinds: Sequence[RowKind | str] | None = None,
        size: int | None = None,
        merge: bool = False,
        **options: Any,
    ) -> dict[Any, Any]:
        """The value of each key, from plain rows: a tuple of arguments each, or the argument if there is one.

        `keys` and `row_kinds` are as long as `rows`. Without keys there is one value, under the key `()`,
        also without rows. `size` cuts the input into bundles of this many rows: then a key's accumulator
        goes from bundle to bundle, or, with `merge`, every bundle begins with new ones, which are merged
        at the end. A sound function gives the same either way, unless it depends on the order and merges.

        Raises AssertionError if a segment failed, and what `apply` raises.
        """
        aggregate = self._aggregate(function)
        before: dict[Any, list[Any]] = {} if keys is not None else {(): []}
        for bundle in bundles_of(rows, keys, row_kinds, size):
            segments = [
                BundledKeySegment(
                    key if isinstance(key, tuple) else (key,), part.rows,
                    [] if merge else before.get(key, []), row_kinds=part.row_kinds,
                )
                for key, part in bundle.items()
            ]  # fmt: skip
            result = await self.apply(aggregate, segments, applied=[AppliedField.ACCUMULATOR], **options)
            for key, each in zip(bundle, result.to_list(), strict=True):
                before[key] = [*(before.get(key, []) if merge else []), each.accumulator]
        finishing = [
            BundledKeySegment(key if isinstance(key, tuple) else (key,), [], found) for key, found in before.items()
        ]
        result = await self.apply(aggregate, finishing, applied=[AppliedField.FINAL_VALUE], **options)
        return dict(zip(before, (each.final_value for each in result.to_list()), strict=True))

    def _aggregate(self, function: AggregateGiven) -> Aggregate:
        if isinstance(function, Aggregate):
            return function
        if id(function) not in self._declared:
            self._declared[id(function)] = declare_aggregate(function)
        return self._declared[id(function)]

    async def _exchanged(self, function: Function, exchange: Exchange) -> RunResult:
        host = self._hosts.setdefault(id(function), FunctionHost(Registry([("test", function)])))
        stream = ExecuteStream(host, self._metrics, self._limits, random=self._random)
        await stream.run(exchange.requests(), exchange.receive)
        return exchange.result()


def _applied(
    aggregate: Aggregate, segments: Sequence[BundledKeySegment], wanted: Sequence[AppliedField], result: RunResult
) -> list[BundledKeySegmentApplied | None]:
    """Each outcome as the author would have written it."""
    codecs: Mapping[AppliedField, Codec] = {
        AppliedField.ACCUMULATOR: aggregate.accumulator,
        AppliedField.STARTING_VALUE: aggregate.result,
        AppliedField.FINAL_VALUE: aggregate.result,
        AppliedField.UPDATED_VALUES: ListCodec(aggregate.result),
    }
    applied: list[BundledKeySegmentApplied | None] = []
    for row, segment in enumerate(segments):
        if row in result.errors:
            applied.append(None)
            continue
        parts = result.values.slice(row, 1).flatten()
        each = BundledKeySegmentApplied(None)
        for field, part in zip(wanted, parts, strict=True):
            if field is not AppliedField.UPDATED_VALUES or segment.updated_values_after_each_row:
                setattr(each, field.value, codecs[field].decode(part)[0])
        applied.append(each)
    return applied
