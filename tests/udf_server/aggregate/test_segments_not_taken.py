"""Results of aggregate and process table functions that a client does not read: the function waits like others."""

import asyncio
from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.arrow import BatchWriter
from remote_udf.messages import encode
from remote_udf.process_calls import segments_schema
from remote_udf.process_planning import TableGiven, plan_process_call
from remote_udf.segments import AppliedField, applied_to_proto
from remote_udf.v1 import message_pb2 as pb
from tests.udf_server.talk import Talk, eventually, finish
from udf_server import ArgumentTrait
from udf_server.aggregate.base import BundledKeySegment
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process
from udf_server.streams.services import StreamLimits
from udf_server.testing.calls import segment_columns

LIMIT = 1 << 20
VALUE = 50_000
BUNDLES, KEYS = 40, 10
"""Their results are twenty times the limit."""
made: list[int] = []


class Longest(udf.BundledAggregateFunction):
    parameters = "v bigint"
    returns = "string"
    accumulator = "bigint"

    def bundled_accumulate_retract(self, bundle):
        made.extend(range(len(bundle)))
        return [udf.BundledKeySegmentApplied(1, None, "x" * VALUE) for _ in bundle]


class Emitting(udf.ProcessTableFunction):
    returns = "value string"

    def eval(self, rows: Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE]) -> Iterator[tuple[str]]:
        made.append(rows.v)
        yield ("x" * VALUE,)


class EmittingInALoop(udf.ProcessTableFunction):
    returns = "value string"

    async def eval(self, rows: Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE]):
        made.append(rows.v)
        yield ("x" * VALUE,)


@pytest.fixture(autouse=True)
def _nothing_made():
    made.clear()


def bundle(sequence: int, columns: pa.RecordBatch) -> bytes:
    message = pb.Batch(sequence=sequence, first_row=sequence * columns.num_rows, rows=columns.num_rows)
    return encode(pb.ExecuteRequest(batch=message), BatchWriter(columns.schema).write(columns))


def aggregate():
    function = declare_aggregate(Longest)
    segments = [BundledKeySegment((key,), [(1,)], []) for key in range(KEYS)]
    columns = segment_columns(function, segments, None)
    wanted = applied_to_proto([AppliedField.FINAL_VALUE])
    return function, pa.record_batch(columns), {"applied": wanted}


def process(cls, *, parts):
    function = declare_process(cls)
    call = plan_process_call(function.spec, {"rows": TableGiven(pa.schema([("v", pa.int64())]))}, {}, {})
    schema = segments_schema(function.spec, call)
    segment = {
        "key": {}, "state": {}, "timers": [], "rows": [{"table": 0, "0": {"v": 1}}], "watermarks": [None],
        "advance_to": None, "now": 0,
    }  # fmt: skip
    columns = pa.RecordBatch.from_pylist([segment] * KEYS, schema)
    return function, columns, {"process": call.to_proto(), "takes_parts": parts}


KINDS = {
    "aggregate": aggregate,
    "process": lambda: process(Emitting, parts=True),
    "process-async": lambda: process(EmittingInALoop, parts=True),
    "process-without-parts": lambda: process(Emitting, parts=False),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_function_of_segments_waits_while_its_results_are_not_taken(kind):
    function, columns, fields = KINDS[kind]()
    async with Talk(function, limits=StreamLimits(result_bytes=LIMIT)) as talk:
        await talk.open(function.spec.name, schema=columns.schema, **fields)
        talk.reads.clear()
        talk.send(*(bundle(number, columns) for number in range(BUNDLES)), finish())
        labels = {"function": function.spec.name, "version": "1"}
        await eventually(lambda: talk.metric("udf_result_waits_total", **labels))
        before = -1
        while before < len(made):
            before = len(made)
            await asyncio.sleep(0.05)
        # The bound is the limit plus one bundle of each call in flight.
        assert len(made) * VALUE < 2 * LIMIT + 4 * KEYS * VALUE
        talk.reads.set()
        answered = 0
        while answered < BUNDLES * KEYS:
            answered += (await talk.receive()).result.rows
        assert (await talk.receive()).finished.counts.rows_ok == BUNDLES * KEYS
    assert len(made) == BUNDLES * KEYS
