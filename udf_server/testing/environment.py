"""FunctionEnvironment: runs functions as a server does, without one."""

import asyncio
import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Unpack

import pyarrow as pa

from remote_udf.effective_options import canonical
from remote_udf.option_types import AggregateCallOptions
from remote_udf.options import AGGREGATE_OPTIONS
from remote_udf.row_kinds import RowKind
from remote_udf.segments import AppliedField
from remote_udf.v1 import message_pb2 as pb
from udf_server.aggregate.base import AggregateFunction, BundledKeySegment
from udf_server.aggregate.declaration import Aggregate, declare_aggregate
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.declaring.functions import Function
from udf_server.declaring.hooks import CPU
from udf_server.hosting.executors import Executors, HostLimits
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.security.access import Caller
from udf_server.stores.memory import MemoryStore
from udf_server.stores.opening import KeyValueStores
from udf_server.streams.execute_stream import ExecuteStream
from udf_server.streams.in_process import Exchange
from udf_server.streams.services import StreamLimits, StreamServices
from udf_server.testing.calls import (
    AppliedResult,
    Rows,
    RunResult,
    applied_segments,
    argument_column,
    bundles_of,
    segment_columns,
)
from udf_server.testing.control import ManualClock

__all__ = ["FunctionEnvironment"]

CACHE_BYTES = 64 << 20
AggregateGiven = Aggregate | AggregateFunction | type[AggregateFunction]


class FunctionEnvironment:
    """Runs functions without a server, with the options, hooks and deadlines that a server would apply.

    ```python
    async with FunctionEnvironment() as environment:
        result = await environment.run(geocode, ["Main St 1", None], timeout="1 s")
        assert result.to_pylist() == [{"lat": 1.0, "lon": 2.0}, None]
        assert await environment.aggregate(Median, [1.0, 2.0, 4.0], keys=["a", "a", "b"]) == {"a": 1.5, "b": 4.0}
    ```
    """

    def __init__(
        self, *, seed: int = 0, message_bytes: int = 64 << 20, cache: OutcomeCache | None = None,
        clock: ManualClock | None = None, device: str = CPU, key_values: str = "memory:",
        limits: HostLimits | None = None,
    ) -> None:  # fmt: skip
        """Create an environment.

        Args:
            seed: Seed of the jitter of retries.
            message_bytes: Maximum size of a message.
            cache: The cache of functions with `cache_ttl`. By default each environment has one in memory.
            clock: A clock that the test moves. By default it is the clock of the machine.
            device: The device that `open` finds in its FunctionContext.
            key_values: The `cache_url` of the key-value stores of functions, such as "file:///tmp/kept". Functions
                that are declared with `durable_store=True` need one that is not in memory.
            limits: Threads, instances and the seconds of hooks, as settings of a server bound them.
        """
        self._random = random.Random(seed)
        self._stream_limits = StreamLimits(message_bytes=message_bytes)
        self.metrics = ServerMetrics()
        """The metrics that a server would publish for the functions; `metrics.registry` is a Prometheus registry."""
        self._cache = cache or OutcomeCache(MemoryStore(CACHE_BYTES), self.metrics)
        self._executors = Executors(clock=clock, later=clock.later) if clock is not None else Executors()
        self._device = device
        self._stores = KeyValueStores(key_values)
        self._limits = limits
        self._declared: dict[int, Aggregate] = {}
        self._hosts: dict[int, FunctionHost] = {}

    async def __aenter__(self) -> "FunctionEnvironment":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._cache.orphans.close()
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
        """Call the function for every row. Outcomes are in the order of the rows, whatever the output mode.

        Args:
            function: A scalar function.
            *arguments: A list or Arrow array for each argument, all of the same length.
            rows: Number of rows; only needed for a function without arguments.
            batch_rows: Number of rows of the batches into which the input is cut, as a client might.
            **options: Options of the call.

        Raises:
            StreamError: A server would refuse the call: wrong arguments or options, or a hook that fails.
            TypeError: The function is an aggregate function.
            ValueError: The arguments have different lengths.
        """
        exchange = self._exchange(function, arguments, options, rows=rows, batch_rows=batch_rows)
        return await self._exchanged(function, exchange)

    async def run_streams(
        self, function: Function, streams: Sequence[Sequence[Any]], *, callers: Sequence[str] = (),
        batch_rows: int | None = None, **options: Any,
    ) -> list[RunResult]:  # fmt: skip
        """Call the function for the rows of several streams at once, as for several tasks of a job.

        No stream sends rows before all are open, so with `max_queue_delay` their rows meet. The streams are the
        partitions 0, 1, 2 and so on.

        Args:
            function: A scalar function.
            streams: For each stream, a list or Arrow array for each argument.
            callers: The identity of the caller of each stream. By default all are of one caller.
            batch_rows: Number of rows of the batches into which the input of each stream is cut.
            **options: Options of the calls.

        Raises:
            StreamError: A server would refuse a call.
            TypeError: The function is an aggregate function.
            ValueError: The arguments of a stream have different lengths, or there is another number of callers.
        """
        if callers and len(callers) != len(streams):
            raise ValueError(f"{len(streams)} streams, but {len(callers)} callers")
        together = asyncio.Barrier(max(len(streams), 1))
        exchanges = [
            self._exchange(function, each, options, batch_rows=batch_rows, partition=number, together=together)
            for number, each in enumerate(streams)
        ]
        names = callers or [""] * len(streams)
        return await asyncio.gather(
            *(self._exchanged(function, each, name) for each, name in zip(exchanges, names, strict=True))
        )

    def _exchange(
        self, function: Function, arguments: Sequence[Any], options: Mapping[str, Any], *, rows: int | None = None,
        batch_rows: int | None = None, partition: int = 0, together: asyncio.Barrier | None = None,
    ) -> Exchange:  # fmt: skip
        if isinstance(function, Aggregate):
            raise TypeError(f"function {function.spec.key} is an aggregate function: use apply or aggregate")
        if arguments and len({len(argument) for argument in arguments}) > 1:
            raise ValueError(f"arguments of different lengths: {[len(argument) for argument in arguments]}")
        columns = [argument_column(function, position, argument) for position, argument in enumerate(arguments)]
        count = len(columns[0]) if columns else rows or 0
        return Exchange(
            function.spec, {f"a{index}": column for index, column in enumerate(columns)}, count,
            context=_context(partition),
            batch_rows=batch_rows or min(max(count, 1), self._stream_limits.unanswered_rows),
            options=canonical(options, source="FunctionEnvironment.run"), together=together,
        )  # fmt: skip

    async def apply(
        self,
        function: AggregateGiven,
        segments: Sequence[BundledKeySegment],
        *,
        applied: Sequence[AppliedField] = tuple(AppliedField),
        key: str | pa.DataType | None = None,
        **options: Unpack[AggregateCallOptions],
    ) -> AppliedResult:
        """Apply an aggregate function to one bundle of segments.

        Args:
            function: A class, an instance, or a declared aggregate function.
            segments: The segments of the bundle.
            applied: What to return for each segment. Values after each row: only for segments that ask for them.
            key: Types of the key's columns, as DDL such as "id bigint, day date". By default Arrow infers them.
            **options: Options of the call.

        Raises:
            StreamError: A server would refuse the call.
            DeclarationError: The function is not declared correctly.
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
            aggregate.spec, columns, len(segments), context=_context(), batch_rows=max(len(segments), 1), options=text,
            applied=wanted,
        )  # fmt: skip
        result = await self._exchanged(aggregate, exchange)
        return AppliedResult(applied_segments(aggregate, segments, wanted, result), result.errors, result.counts)

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
    ) -> dict[Hashable, Any]:
        """Aggregate plain rows. Returns the value of each key.

        With `size`, a key's accumulator is passed from bundle to bundle. With `merge` as well, every bundle begins with
        new accumulators, which are merged at the end. The result of a correct function is the same either way, unless
        it depends on the order and merges.

        Args:
            function: A class, an instance, or a declared aggregate function.
            rows: For each row a tuple of arguments, or the argument if there is only one.
            keys: The key of each row. By default there is one value, under the key `()`, even if there are no rows.
            row_kinds: The kind of change of each row.
            size: Number of rows of a bundle. By default there is one bundle.
            merge: Whether every bundle begins with new accumulators.
            **options: Options of the call.

        Raises:
            AssertionError: A segment failed.
            StreamError: A server would refuse the call.
            DeclarationError: The function is not declared correctly.
            ValueError: `keys` or `row_kinds` have another length than `rows`.
        """
        aggregate = self._aggregate(function)
        before: dict[Hashable, list[Any]] = {} if keys is not None else {(): []}
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

    async def _exchanged(self, function: Function, exchange: Exchange, caller: str = "") -> RunResult:
        if id(function) not in self._hosts:
            self._hosts[id(function)] = FunctionHost(
                Registry([("test", function)]), limits=self._limits, executors=self._executors, device=self._device,
                stores=self._stores,
            )  # fmt: skip
        services = StreamServices(
            self._hosts[id(function)], self.metrics, self._stream_limits, cache=self._cache,
            clock=self._executors.clock, new_random=lambda: self._random,
        )  # fmt: skip
        stream = ExecuteStream(services, caller=Caller(caller))
        await stream.run(exchange.requests(), exchange.receive)
        return RunResult(*exchange.outcomes())


def _context(partition: int = 0) -> pb.CallContext:
    return pb.CallContext(operation_id="test", stage=-1, partition=partition, micro_batch=-1)
