"""A file with texts that are not UTF-8: each costs its row, or its key, whatever the kind of the function."""

from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import root_cause
from tests.udf_server.raw_texts import BAD, column
from udf_server import ArgumentTrait
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process


@udf.scalar
async def length(text: str) -> int:
    return len(text)


@udf.scalar(parameters="place struct<city:string>", returns="bigint")
def of_city(place):
    return len(place["city"])


class Lengths(udf.AggregateFunction):
    parameters = "text string"
    returns = "bigint"
    accumulator = "struct<n:bigint>"

    def create_accumulator(self):
        return {"n": 0}

    def accumulate(self, accumulator, text):
        accumulator["n"] += len(text)

    def merge(self, accumulator, others):
        for other in others:
            accumulator["n"] += other["n"]

    def get_value(self, accumulator):
        return accumulator["n"]

    def supports_merging(self):
        return True


class Texts(udf.ProcessTableFunction):
    returns = "n bigint"

    def eval(self, rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]) -> Iterator[tuple]:
        yield (len(rows.text),)


@pytest.fixture
def functions(remote):
    return remote(length, of_city, declare_aggregate(Lengths), declare_process(Texts))


@pytest.fixture
def path(tmp_path):
    texts = [b"fine", BAD, b"x", b"yy"]
    table = pa.table({
        "id": [1, 2, 3, 4], "text": column(texts, pa.string()), "k": column([b"a", b"b", b"c", BAD], pa.string()),
        "place": column([{"city": each} for each in texts], pa.struct([("city", pa.string())])),
    })  # fmt: skip
    pq.write_table(table, str(tmp_path / "texts.parquet"))
    return str(tmp_path / "texts.parquet")


@pytest.mark.connect
def test_of_rows_only_those_with_such_a_text_fail(spark, functions, path, tmp_path):
    calls = {"n": functions.function("length")("text"), "c": functions.function("of_city")("place")}
    for frame in (spark.read.parquet(path), functions.read_parquet(path)):
        found = functions.with_columns(frame, calls, on_error="column").select("id", "n", "c", "n_error", "c_error")
        rows = {row.id: row for row in found.collect()}
        assert {key: (row.n, row.c) for key, row in rows.items()} == {1: (4, 4), 2: (None, None), 3: (1, 1), 4: (2, 2)}
        assert [rows[2].n_error.code, rows[2].c_error.code] == ["ARGUMENT_VALUE"] * 2
        assert "parameter 'text': a text is not UTF-8: byte 0xe9 at position 3" in rows[2].n_error.message
        assert "field 'city'" in rows[2].c_error.message
    letters = str(tmp_path / "letters")
    kept = functions.with_columns(
        functions.read_parquet(path), {"n": calls["n"]}, on_error="dead-letter", dead_letter=letters
    )
    assert sorted(row.id for row in kept.select("id", "n").collect()) == [1, 3, 4]
    assert spark.read.parquet(letters).select(F.hex(F.col("text").cast("binary"))).first()[0] == BAD.hex().upper()


def test_of_keys_only_those_with_such_a_text_fail(spark, functions, path):
    frame, lengths = spark.read.parquet(path), functions.function("lengths")
    found = functions.group_by(frame, "k").agg(lengths.with_options(on_error="column")("text").alias("n"))
    rows = {bytes(row.k): (row.n, row.n_error) for row in found.withColumn("k", F.col("k").cast("binary")).collect()}
    assert {key: n for key, (n, _) in rows.items()} == {b"a": 4, b"b": None, b"c": 1, BAD: 2}
    assert rows[b"b"][1].code == "ARGUMENT_VALUE"
    assert "parameter 'text': a text is not UTF-8" in rows[b"b"][1].message


def test_the_error_of_a_process_function_names_table_and_column(spark, functions, path):
    frame = spark.read.parquet(path)
    process = functions.process
    assert sorted(row.n for row in process("texts", frame.where("id in (1, 3)"), partition_by="k").collect()) == [1, 4]
    for chosen, place in ((2, "table 'rows', field 'text'"), (4, "key, field 'k'")):
        with pytest.raises(Exception, match="ARGUMENT_VALUE") as raised:
            process("texts", frame.where(F.col("id") == chosen), partition_by="k").collect()
        assert f"{place}: a text is not UTF-8: byte 0xe9 at position 3" in str(root_cause(raised.value))
