"""Every kind of function accepts columns that are NOT NULL, or have parts that are, like nullable ones."""

from collections.abc import Iterator
from typing import Annotated

import pytest
from pyspark.sql import functions as F
from pyspark.sql import types as T

import udf_server as udf
from spark_client import Window, windows
from udf_server import ArgumentTrait
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process

DEEP = "struct<a:bigint,b:array<struct<c:bigint>>,m:map<string,bigint>>"


@udf.scalar(parameters=f"x {DEEP}", returns=DEEP)
def same(x):
    return x


@udf.scalar(vectorized=True, parameters=f"x {DEEP}", returns=DEEP)
def all_same(x):
    return x


class Largest(udf.AggregateFunction):
    """The struct with the largest field a."""

    parameters, accumulator, returns = f"x {DEEP}", f"array<{DEEP}>", DEEP

    def create_accumulator(self):
        return []

    def accumulate(self, acc, x):
        return [max([*acc, x], key=lambda each: each["a"])]

    def retract(self, acc, x):
        return acc

    def merge(self, acc, others):
        every = [each for one in (acc, *others) for each in one]
        return [max(every, key=lambda each: each["a"])] if every else []

    def get_value(self, acc):
        return acc[0] if acc else None


class Keyed(udf.ProcessTableFunction):
    """Returns rows with a key unchanged."""

    returns = f"n int, last {DEEP}"

    def eval(
        self, rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.PASS_COLUMNS_THROUGH]
    ) -> Iterator[tuple]:
        yield len(rows), rows.s


class Single(udf.ProcessTableFunction):
    """Returns rows without a key unchanged."""

    returns = "n int"

    def eval(
        self, rows: Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE, ArgumentTrait.PASS_COLUMNS_THROUGH]
    ) -> Iterator[tuple]:
        yield (len(rows),)


@pytest.fixture
def session(remote):
    return remote(same, all_same, declare_aggregate(Largest), declare_process(Keyed), declare_process(Single))


def columns_of(frame):
    """Expressions whose results and nested parts are NOT NULL."""
    deep = "named_struct('a', id, 'b', array(named_struct('c', id)), 'm', map('k', id))"
    return frame.selectExpr(
        "id", "coalesce(id % 2, 0L) AS k", f"{deep} AS s", "'lit' AS t", "array(named_struct('c', id % 2)) AS keys",
        "timestamp_seconds(id) AS ts", "1.5 AS d",
    )  # fmt: skip


def nullable(type_):
    if isinstance(type_, T.StructType):
        return T.StructType([T.StructField(each.name, nullable(each.dataType)) for each in type_.fields])
    if isinstance(type_, T.ArrayType):
        return T.ArrayType(nullable(type_.elementType))
    return T.MapType(type_.keyType, nullable(type_.valueType)) if isinstance(type_, T.MapType) else type_


CALLS = {
    "scalar": lambda it, frame: frame.select(it.function("same")("s"), it.function("all_same")("s")),
    "whole rows": lambda it, frame: it.with_columns(frame, {"z": it.function("same")("s")}),
    "group by": lambda it, frame: it.group_by(frame, "k", "t", "keys").agg(it.function("largest")("s").alias("z")),
    "cube": lambda it, frame: it.cube(frame, "k", "t").agg(it.function("largest")("s").alias("z"), F.max("d")),
    "order by": lambda it, frame: it.group_by(frame, "k", order_by="ts").agg(it.function("largest")("s").alias("z")),
    "over": lambda it, frame: it.with_columns(
        frame, {"z": it.function("largest")("s").over(Window.partitionBy("keys").orderBy("ts"))}
    ),
    "changelog": lambda it, frame: it.group_by(frame.withColumn("row_kind", F.lit("+I")), "k").changelog(
        it.function("largest")("s").alias("z")
    ),
    "process by key": lambda it, frame: it.process("keyed", frame, partition_by=["keys", "t"], order_by="ts"),
    "process": lambda it, frame: it.process("single", frame, on_time="ts"),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_kind_of_function_takes_columns_that_are_not_null(session, spark, call):
    frame = columns_of(spark.range(3))
    assert not any(field.nullable for field in frame.schema.fields)
    same = spark.createDataFrame(frame.collect(), nullable(frame.schema))
    found = sorted(map(repr, CALLS[call](session, frame).collect()))
    assert found == sorted(map(repr, CALLS[call](session, same).collect()))
    assert found


@pytest.mark.long
def test_streams_take_columns_that_are_not_null(session, spark, tmp_path):
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    spark.range(3).write.parquet(str(tmp_path / "in"))
    ids = (
        spark.readStream.schema("id bigint")
        .parquet(str(tmp_path / "in"))
        .select(F.coalesce("id", F.lit(0)).alias("id"))
    )
    frame = columns_of(ids).withWatermark("ts", "1 second")
    largest = session.function("largest")
    tumbled = session.group_by(windows.tumble(frame, "ts", "2 s"), "window_start", "window_end", "t")
    started = {
        "keyed": session.process("keyed", frame, partition_by=["keys", "t"], uid="it"),
        "single": session.process("single", frame),
        "fired": tumbled.emit(early_fire_delay="0 s").agg(largest("s").alias("z")),
    }
    for name, result in started.items():
        stream = result.writeStream.format("memory").queryName(f"not_null_{name}").trigger(availableNow=True)
        stream.option("checkpointLocation", str(tmp_path / name)).start().awaitTermination()
    assert [spark.table(f"not_null_{name}").count() for name in started] == [3, 3, 2]
