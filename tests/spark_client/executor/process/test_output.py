"""Output of process table functions that exceeds a message, or the capacity of an array."""

import asyncio
import random
from collections.abc import Iterator
from typing import Annotated

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.effective_options import canonical
from remote_udf.options import AGGREGATE_OPTIONS
from remote_udf.process_planning import TableGiven, output_fields, plan_process_call
from spark_client.base.calls import ErrorPolicy, ProcessTableCall
from spark_client.base.config import ClientConfig
from spark_client.base.errors import FunctionFailed
from spark_client.executor.process.output import BATCH_BYTES, cast
from spark_client.executor.process.plan import OutputSource, ProcessPlan
from spark_client.executor.process.processing import map_processed
from spark_client.executor.stream.runtime import Runtime
from spark_client.testing import FaultyTransport, LocalTransport
from tests.properties import examples
from tests.spark_client.scripted import stream_of
from udf_server import ArgumentTrait, StateHint, ValueView
from udf_server.process.declaration import declare_process

ROW = pa.schema([("k", pa.int64()), ("count", pa.int64()), ("width", pa.int64()), ("text", pa.string())])
MESSAGE_BYTES = 64 << 10


class Repeat(udf.ProcessTableFunction):
    """Each row gives the number and the width of its output rows; the state counts all rows of the key."""

    returns = "number bigint, text string"

    def eval(
        self, ctx: udf.ProcessContext, seen: Annotated[ValueView[int], StateHint()],
        rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE],
    ) -> Iterator[tuple]:  # fmt: skip
        ctx.register_on_time("end", 2**63 - 1)
        for _ in range(rows.count):
            seen.value = (seen.value or 0) + 1
            yield seen.value, "x" * rows.width

    def on_timer(self, ctx: udf.ProcessContext, seen: Annotated[ValueView[int], StateHint()]) -> Iterator[tuple]:
        yield -(seen.value or 0), "end"


class RepeatAsync(Repeat):
    """Does the same, but waits now and then."""

    async def eval(
        self, ctx: udf.ProcessContext, seen: Annotated[ValueView[int], StateHint()],
        rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE],
    ):  # fmt: skip
        ctx.register_on_time("end", 2**63 - 1)
        for number in range(rows.count):
            if number % 100 == 0:
                await asyncio.sleep(0)
            seen.value = (seen.value or 0) + 1
            yield seen.value, "x" * rows.width


class Flaky(Repeat):
    """Fails now and then in the middle of its output; another attempt succeeds."""

    def __init__(self) -> None:
        self.fates = random.Random(7)

    def eval(
        self, ctx: udf.ProcessContext, seen: Annotated[ValueView[int], StateHint()],
        rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE],
    ) -> Iterator[tuple]:  # fmt: skip
        fails = self.fates.random() < 0.3
        for number, row in enumerate(super().eval(ctx, seen, rows)):
            if fails and number >= rows.count // 2:
                raise udf.RetryableError("now and then")
            yield row


class Explode(udf.ProcessTableFunction):
    """Passes columns through and makes many rows of one."""

    returns = "number bigint"

    def eval(
        self, rows: Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE, ArgumentTrait.PASS_COLUMNS_THROUGH]
    ) -> Iterator[tuple]:
        for number in range(rows.count):
            yield (number,)


def plan_of(declared, **options):
    argument = declared.spec.process.tables[0]
    by_key = argument.has_set_semantics
    process = plan_process_call(declared.spec, {argument.name: TableGiven(ROW, ["k"] if by_key else None)}, {})
    call = ProcessTableCall(
        spec=declared.spec, arguments=1, options=canonical(options, source="test", known=(AGGREGATE_OPTIONS,)),
        operation_id="test", config=ClientConfig("test"), policy=ErrorPolicy(), process=process,
    )  # fmt: skip
    fields = declared.spec.result.num_fields
    output = [(OutputSource.KEY, 0)] if by_key else [(OutputSource.THROUGH, i) for i in range(len(ROW))]
    return ProcessPlan(
        call=call, keys=(0,) if by_key else (), key_names=("k",) if by_key else (), table=None, row_kind=None,
        time=None, rows=(1,), output=(*output, *((OutputSource.VALUE, i) for i in range(fields))),
        schema=pa.schema(output_fields(declared.spec, process)), by_key=by_key,
    )  # fmt: skip


def processed(plan, transport, rows):
    """The batches of the result."""
    table = pa.Table.from_pylist([dict(zip(ROW.names, row, strict=True)) for row in rows], ROW)
    batch = pa.RecordBatch.from_arrays(
        [table.column("k").combine_chunks(), table.to_struct_array().combine_chunks()], names=["k", "row"]
    )
    config = plan.call.config

    def opened(call, arguments):
        return stream_of(call, transport, arguments, sleep=lambda seconds: None)

    assert config
    return map_processed(plan, iter([batch]), Runtime(opened))


def repeated(rows):
    """Returns the expected output of Repeat."""
    expected, seen = [], {}
    keys = sorted({row[0] for row in rows})
    for key in keys:
        for _, count, width, _ in (row for row in rows if row[0] == key):
            for _ in range(count):
                seen[key] = seen.get(key, 0) + 1
                expected.append((key, seen[key], width))
        expected.append((key, -seen.get(key, 0), 3))
    return expected


ROWS = st.lists(
    st.tuples(
        st.integers(0, 30), st.sampled_from([0, 1, 3, 50, 1000]), st.sampled_from([0, 10, 900, 20_000]), st.just("")
    ).filter(lambda row: row[1] * row[2] < 1 << 20),
    min_size=1, max_size=40,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))  # fmt: skip


@pytest.fixture(scope="module", params=[Repeat, RepeatAsync, Flaky], ids=lambda kind: kind.__name__)
def served(request):
    declared = declare_process(request.param)
    with LocalTransport(declared, message_bytes=MESSAGE_BYTES) as transport:
        yield declared, transport


@pytest.mark.long
@hypothesis.given(rows=ROWS, seed=st.integers(0, 2**16), size=st.sampled_from([1, 2, 1000]))
@examples(25, deadline=None)
def test_output_of_any_size_arrives_once_and_in_order_whatever_is_lost(served, rows, seed, size):
    declared, transport = served
    faulty = FaultyTransport(transport, seed, loss_rate=0.05, most_losses=4)
    retries = {"retry-strategy": "fixed-delay", "fixed-delay": "1 ms", "max-attempts": "50"}
    plan = plan_of(declared, size=str(size), **retries)
    found = [
        (row["k"], row["number"], len(row["text"]))
        for batch in processed(plan, faulty, rows)
        for row in batch.to_pylist()
    ]
    # The order of keys is not defined.
    assert sorted(found, key=lambda row: row[0]) == repeated(rows)


def test_an_emitted_row_that_fits_no_message_is_an_error_that_says_so():
    declared = declare_process(Repeat)
    with (
        LocalTransport(declared, message_bytes=MESSAGE_BYTES) as transport,
        pytest.raises(FunctionFailed, match=r"key \(k=1\) failed: RESULT_TOO_LARGE: an emitted row takes \d+ bytes"),
    ):
        list(processed(plan_of(declared), transport, [(1, 3, 100_000, "")]))


@pytest.mark.slow
def test_columns_passed_through_make_batches_of_bounded_size():
    declared = declare_process(Explode)
    long, found = "y" * (1 << 20), 0
    given = [(1, 2_500, 0, long), (2, 3, 0, "short"), (3, 100, 0, long)]
    with LocalTransport(declared) as transport:
        for batch in processed(plan_of(declared), transport, given):
            assert batch.nbytes <= BATCH_BYTES + (2 << 20)
            found += batch.num_rows
    assert found == 2_603


@pytest.mark.parametrize("missing", [False, True])
def test_a_cast_goes_by_position_and_widens_at_every_depth(missing):
    found = pa.struct([("a", pa.int16()), ("b", pa.float32())])
    wanted = pa.struct([("x", pa.int64()), ("y", pa.float64())])

    def nested(inner):
        return pa.struct([
            ("s", pa.struct([("one", inner)])), ("l", pa.list_(pa.field("element", inner))),
            ("m", pa.map_(pa.string(), pa.field("value", inner))),
        ])  # fmt: skip

    value = {"s": {"one": {"a": 1, "b": 2.0}}, "l": [{"a": 3, "b": None}, None], "m": [("k", {"a": 5, "b": 6.0})]}
    rows = [value, value, None if missing else value, {"s": None, "l": None, "m": None} if missing else value, value]
    array = pa.array(rows, nested(found))
    renamed = str(array.to_pylist()).replace("'a'", "'x'").replace("'b'", "'y'")
    for start in range(len(rows)):
        result = cast(array.slice(start), nested(wanted))
        result.validate(full=True)
        assert result.type == nested(wanted)
        assert str(result.to_pylist()) == str(eval(renamed)[start:])
