"""Streams of two tables whose watermarks advance at a different pace, against the harness."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import udf_server as udf
from tests.spark.process_streams import Keyed, run, stream_of, write
from udf_server.process.declaration import declare_process
from udf_server.testing import ProcessTableHarness, table

pytestmark = [pytest.mark.timeout(400), pytest.mark.long, pytest.mark.usefixtures("rocksdb")]

SCHEMA = "k string, v bigint, ts timestamp"


class Paced(udf.ProcessTableFunction):
    """Tells each row and each timer with the watermark at which it comes. A row sets a timer, or moves one."""

    returns = "what string, value bigint, watermark bigint"

    def eval(self, ctx: udf.ProcessContext, count: udf.ValueView[int], fast: Keyed, slow: Keyed) -> Iterator[Any]:
        row, what, times = fast or slow, "fast" if fast else "slow", ctx.time_context(int)
        count.value = (count.value or 0) + 1
        times.register_on_time(f"t{row.v % 3}", times.time() + 1000 * (row.v % 7))
        yield what, count.value, times.current_watermark()

    def on_timer(self, ctx: udf.ProcessContext, count: udf.ValueView[int]) -> Iterator[Any]:
        yield ctx.current_timer, count.value or 0, ctx.time_context(int).current_watermark()
        if count.value and count.value % 4 == 0:
            ctx.clear_all()


def drawn(seed: int) -> tuple[dict[str, int], list[dict[str, list[tuple[str, int, int]]]]]:
    """The delay of each table, and the rows of each micro-batch; the times of one table advance faster."""
    draw = random.Random(seed)
    delays = {"fast": draw.randrange(4), "slow": draw.randrange(10)}
    speeds = {"fast": draw.choice([5, 20]), "slow": draw.choice([0, 2, 5])}
    batches = [
        {
            name: [
                (draw.choice("xyz"), draw.randrange(100), 600 + speeds[name] * number + draw.randrange(-6, 7))
                for _ in range(draw.randint(1, 4))
            ]
            for name in delays
        }
        for number in range(5)
    ]
    return delays, batches


def expected(delays: dict[str, int], batches: list[dict[str, list[tuple[str, int, int]]]]) -> list[tuple[Any, ...]]:
    """Rows of the harness: each micro-batch begins with the lower of the watermarks that the rows before it made."""
    given = {name: table(SCHEMA, partition_by="k") for name in delays}
    latest: dict[str, int] = {}
    told: list[tuple[Any, ...]] = []
    with ProcessTableHarness(Paced, given, on_time=["ts"], also_batch=False) as harness:
        for batch in [*batches, {}]:
            if latest.keys() == delays.keys():
                harness.watermark(datetime.fromtimestamp(min(latest[name] - delays[name] for name in delays), UTC))
            for name, rows in batch.items():
                for key, value, second in rows:
                    harness.row(name, (key, value, datetime.fromtimestamp(second, UTC)))
                    latest[name] = max(second, latest.get(name, 0))
        told += [tuple(row) for row in harness.output]
    return told


def by_text(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(((*row[:-1], round(row[-1].timestamp())) for row in rows), key=str)


@pytest.mark.parametrize("seed", range(2))
def test_the_lowest_watermark_of_two_tables_fires_timers_as_in_the_harness(remote, spark, tmp_path, seed):
    delays, batches = drawn(seed)
    functions = remote(declare_process(Paced))
    for name in delays:
        (tmp_path / name).mkdir()
        for number, batch in enumerate(batches):
            write(tmp_path / name, "abcde"[number], batch[name])
    tables = {name: stream_of(spark, tmp_path / name, f"{delay} seconds") for name, delay in delays.items()}
    frame = functions.process("paced", tables, partition_by="k", on_time="ts")
    assert by_text(run(frame, tmp_path)) == by_text(expected(delays, batches)), f"seed {seed}"
