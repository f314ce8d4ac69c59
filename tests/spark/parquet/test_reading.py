"""Remote calls over `read_parquet`: the rows are those of `spark.read.parquet`, and workers read the files."""

import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

import udf_server as udf
from spark_client import PlanError
from spark_client.sql.fewer_calls.explaining import plan_of
from tests.properties import few_quickly
from tests.spark.parquet_worlds import World
from udf_server.aggregate.declaration import declare_aggregate

SEED = random.randrange(1 << 31) if os.environ.get("REMOTE_UDF_SEED") == "random" else 18
ZONES = ("UTC", "America/Los_Angeles", "Australia/Lord_Howe")


@udf.scalar(vectorized=True)
def one_more(x: pa.Int64Array) -> pa.Int64Array:
    return pa.compute.add(x, 1)


def rows_of(frame: DataFrame) -> list[str]:
    """The rows in no order, in a form in which NaN equals NaN."""
    months = [field.name for field in frame.schema if isinstance(field.dataType, T.YearMonthIntervalType)]
    for name in months:
        frame = frame.withColumn(name, F.col(name).cast("string"))
    return sorted(map(repr, frame.collect()))


def spark_reads(frame: DataFrame) -> bool:
    """Whether Spark reads files for the frame."""
    return "FileScan" in plan_of(frame)


@pytest.mark.connect
@pytest.mark.parametrize("number", few_quickly(2, range(8)))
def test_rows_of_every_type_are_those_that_spark_reads(remote, spark, tmp_path, zone, number):
    seed = SEED * 100 + number
    session = remote(one_more)
    zone(random.Random(seed).choice(ZONES))
    world = World.of(spark, seed, tmp_path / "data")
    print(world.story)
    theirs = spark.read.parquet(world.path)
    frame = session.read_parquet(world.path)
    assert frame.schema == theirs.schema
    ours = session.with_columns(frame, {"more": session.function("one_more")("id")})
    assert not spark_reads(ours)
    assert rows_of(ours) == rows_of(theirs.withColumn("more", F.col("id") + 1))
    assert [field.dataType for field in ours.drop("more").schema] == [field.dataType for field in theirs.schema]


class Total(udf.AggregateFunction):
    """The sum of integers."""

    parameters, returns, accumulator = "x bigint", "bigint", "struct<total:bigint>"

    def supports_merging(self) -> bool:
        return True

    def create_accumulator(self) -> dict[str, int]:
        return {"total": 0}

    def accumulate(self, accumulator: dict[str, int], x: int | None) -> None:
        accumulator["total"] += x or 0

    def merge(self, accumulator: dict[str, int], others: list[dict[str, int]]) -> None:
        accumulator["total"] += sum(other["total"] for other in others)

    def get_value(self, accumulator: dict[str, int]) -> int:
        return accumulator["total"]


@pytest.fixture
def sales(spark, tmp_path) -> str:
    """Files of ids, shops, prices and days."""
    path = str(tmp_path / "sales")
    frame = spark.range(0, 300, 1, 3).selectExpr(
        "id", "id % 7 AS shop", "CAST(id AS double) / 4 AS price", "concat('n', id) AS `a name`", "id % 2 AS day"
    )
    frame.write.partitionBy("day").parquet(path)
    return path


@pytest.mark.connect
def test_an_aggregate_is_reduced_where_files_are_read(remote, spark, sales):
    session = remote(declare_aggregate(Total))
    frame = session.read_parquet(sales)
    grouped = session.group_by(frame, "shop").agg(session.function("total")("id"))
    assert not spark_reads(grouped)
    assert rows_of(grouped) == rows_of(spark.read.parquet(sales).groupBy("shop").agg(F.sum("id").alias("total(id)")))


def test_a_frame_is_of_spark_in_every_other_way(remote, spark, sales):
    session = remote(one_more)
    frame, one = session.read_parquet(sales), session.function("one_more")
    derived = session.with_columns(frame.where("id < 3"), {"more": one("id")})
    computed = session.select(frame, one(F.col("id") * 2).alias("more"))
    direct = frame.select(one("id"))
    for each in (derived, computed, direct):
        assert spark_reads(each)
    assert sorted(row.more for row in derived.collect()) == [1, 2, 3]
    assert sorted(row.more for row in computed.collect()) == list(range(1, 600, 2))


def test_only_the_columns_that_a_query_uses_are_read(remote, spark, tmp_path):
    path = tmp_path / "one.parquet"
    pq.write_table(pa.table({"x": [1, 2], "broken": ["a", "b"]}), path, compression="none")
    where = pq.ParquetFile(path).metadata.row_group(0).column(1).dictionary_page_offset
    data = bytearray(path.read_bytes())
    data[where : where + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    session = remote(one_more)
    frame, one = session.read_parquet(str(path)), session.function("one_more")
    assert sorted(row.y for row in session.select(frame, one("x").alias("y")).collect()) == [2, 3]
    with pytest.raises(PySparkException, match=r"ReadFailed: file file:.*one.parquet cannot be read: "):
        session.with_columns(frame, {"y": one("x")}).collect()


def test_one_column_needs_no_list(remote, spark, sales):
    frame = remote(one_more).read_parquet(sales, columns="id")
    assert rows_of(frame) == rows_of(spark.read.parquet(sales).select("id"))


@pytest.mark.parametrize(
    "columns",
    [
        lambda frame, one: ["id", one("id").alias("y")],
        lambda frame, one: [F.col("ID").alias("i"), frame["shop"], one(frame.id).alias("y"), "`a name`"],
        lambda frame, one: ["*", one("id").alias("y")],
        lambda frame, one: ["day", one("shop").alias("y"), one(one("shop")).alias("z")],
    ],
)
def test_selected_columns_are_read_by_workers(remote, spark, sales, columns):
    session = remote(one_more)
    frame, one = session.read_parquet(sales), session.function("one_more")
    plain = spark.read.parquet(sales)
    ours, theirs = session.select(frame, *columns(frame, one)), session.select(plain, *columns(plain, one))
    assert (spark_reads(ours), spark_reads(theirs)) == (False, True)
    assert ours.columns == theirs.columns
    assert rows_of(ours) == rows_of(theirs)


def test_a_literal_with_the_text_of_a_column_is_no_column(remote, spark, tmp_path):
    path = str(tmp_path / "data")
    spark.sql("SELECT 1L AS id, 'of the file' AS text, 'b' AS `1`").write.parquet(path)
    session = remote(one_more)
    frame = session.read_parquet(path)
    one = session.function("one_more")
    row = session.select(frame, F.lit("text").alias("t"), F.lit(1).alias("n"), one("id").alias("y")).first()
    assert (row.t, row.n, row.y) == ("text", 1, 2)


def test_a_column_that_a_file_does_not_have_is_null(remote, spark, tmp_path):
    pq.write_table(pa.table({"id": [1], "s": [{"a": 1, "b": 2}]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2], "s": [{"b": 3}], "more": ["x"]}), tmp_path / "b.parquet")
    session = remote(one_more)
    spark.conf.set("spark.sql.parquet.mergeSchema", "true")
    try:
        ours = session.with_columns(session.read_parquet(str(tmp_path)), {"y": session.function("one_more")("id")})
        theirs = spark.read.parquet(str(tmp_path)).withColumn("y", F.col("id") + 1)
        assert rows_of(ours) == rows_of(theirs)
    finally:
        spark.conf.unset("spark.sql.parquet.mergeSchema")


def collected(remote, path, column="id") -> list[str]:
    session = remote(one_more)
    return rows_of(session.with_columns(session.read_parquet(str(path)), {"y": session.function("one_more")(column)}))


@pytest.mark.parametrize("mode", ["corrected", "CORRECTED"])
def test_old_dates_are_read_as_they_are_whatever_the_case_of_the_mode(remote, spark, tmp_path, mode):
    pq.write_table(pa.table({"id": [1], "d": pa.array([-200_000], pa.date32())}), tmp_path / "old.parquet")
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", mode)
    try:
        found = collected(remote, tmp_path)
        assert found == rows_of(spark.read.parquet(str(tmp_path)).withColumn("y", F.col("id") + 1))
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")


def test_a_path_that_does_not_exist_is_reported_by_spark(remote, tmp_path):
    with pytest.raises(PySparkException, match="PATH_NOT_FOUND"):
        remote(one_more).read_parquet(str(tmp_path / "nowhere"))


def test_directories_may_have_the_name_of_metadata(remote, spark, tmp_path):
    spark.range(6).selectExpr("id", "id % 2 AS _metadata").write.partitionBy("_metadata").parquet(str(tmp_path / "a"))
    assert collected(remote, tmp_path / "a") == rows_of(
        spark.read.parquet(str(tmp_path / "a")).withColumn("y", F.col("id") + 1)
    )


def test_an_unknown_column_is_reported_when_the_call_is_planned(remote, sales):
    session = remote(one_more)
    with pytest.raises(PySparkException, match="UNRESOLVED_COLUMN"):
        session.with_columns(session.read_parquet(sales), {"y": session.function("one_more")("idd")})


def test_a_file_that_vanished_is_named(remote, tmp_path):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "one.parquet")
    session = remote(one_more)
    frame = session.with_columns(session.read_parquet(str(tmp_path)), {"y": session.function("one_more")("id")})
    (tmp_path / "one.parquet").unlink()
    with pytest.raises(PySparkException, match=r"ReadFailed: file file:.*/one.parquet is gone"):
        frame.collect()


def test_a_file_that_was_written_again_is_named(remote, tmp_path):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "one.parquet")
    session = remote(one_more)
    frame = session.with_columns(session.read_parquet(str(tmp_path)), {"y": session.function("one_more")("id")})
    pq.write_table(pa.table({"id": list(range(1000))}), tmp_path / "one.parquet")
    with pytest.raises(PySparkException, match=r"one.parquet has \d+ bytes, and had \d+ when read_parquet listed it"):
        frame.collect()


def test_a_file_that_was_replaced_by_one_of_the_same_size_is_named(remote, tmp_path):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "one.parquet")
    session = remote(one_more)
    frame = session.with_columns(session.read_parquet(str(tmp_path)), {"y": session.function("one_more")("id")})
    assert [row.y for row in frame.collect()] == [2]
    before = (tmp_path / "one.parquet").stat()
    pq.write_table(pa.table({"id": [7]}), tmp_path / "one.parquet")
    os.utime(tmp_path / "one.parquet", ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    assert (tmp_path / "one.parquet").stat().st_size == before.st_size
    with pytest.raises(PySparkException, match=r"one.parquet has another time of modification than it had when read_p"):
        frame.collect()


def test_a_type_that_would_be_narrowed_is_refused(remote, tmp_path):
    pq.write_table(pa.table({"id": pa.array([1]), "n": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([1]), "n": pa.array([1 << 40])}), tmp_path / "b.parquet")
    with pytest.raises(PySparkException, match=r"column 'n' of file .*b.parquet: the file has type int64, and Spark"):
        collected(remote, tmp_path)


@pytest.mark.parametrize("key", ["org.apache.spark.legacyDateTime", ""])
def test_old_dates_of_the_hybrid_calendar_are_refused(remote, spark, tmp_path, key):
    version = {"org.apache.spark.version": "3.5.0" if key else "2.4.8"}
    table = pa.table({"id": [1], "d": pa.array([-200_000], pa.date32())})
    pq.write_table(table.replace_schema_metadata(version | ({key: ""} if key else {})), tmp_path / "old.parquet")
    with pytest.raises(PySparkException, match=r"column 'd' of file .*old.parquet: .* hybrid calendar"):
        collected(remote, tmp_path)


def test_later_dates_of_the_hybrid_calendar_are_read(remote, spark, tmp_path):
    table = pa.table({"id": [1], "d": pa.array([19_000], pa.date32())})
    pq.write_table(table.replace_schema_metadata({"org.apache.spark.version": "2.4.8"}), tmp_path / "old.parquet")
    assert collected(remote, tmp_path) == rows_of(spark.read.parquet(str(tmp_path)).withColumn("y", F.col("id") + 1))


def test_a_setting_that_workers_cannot_follow_is_refused(remote, spark, sales):
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(PlanError, match=r"spark\.sql\.files\.ignoreMissingFiles=true"):
            remote(one_more).read_parquet(sales)
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_names_that_differ_in_case_are_one_column_unless_case_counts(remote, spark, tmp_path):
    pq.write_table(pa.table({"ID": [1], "v": [5]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2], "V": [6]}), tmp_path / "b.parquet")
    expected = rows_of(spark.read.parquet(str(tmp_path)).withColumn("y", F.col("id") + 1))
    assert collected(remote, tmp_path) == expected


@pytest.mark.parametrize(("most", "least"), [("500000", 4), ("1p", 1)])
def test_large_files_are_cut_and_small_ones_share_a_task(remote, spark, tmp_path, most, least):
    table = pa.table({"id": list(range(100_000))})
    for name in "abc":
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=10_000, compression="none")
    settings = {"spark.sql.files.openCostInBytes": "1000", "spark.sql.files.maxPartitionBytes": most}
    session = remote(one_more)
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        frame = session.select(session.read_parquet(str(tmp_path)), session.function("one_more")("id").alias("y"))
    finally:
        for name in settings:
            spark.conf.unset(name)
    counts = frame.groupBy(F.spark_partition_id()).count().collect()
    assert len(counts) >= least
    assert frame.agg(F.sum("y"), F.count("y"), F.countDistinct("y")).first() == (3 * 5_000_050_000, 300_000, 100_000)


@pytest.mark.connect
def test_an_aggregate_in_sql_is_reduced_where_files_are_read(remote, spark, sales):
    session = remote(declare_aggregate(Total))
    frame, plain = session.read_parquet(sales), spark.read.parquet(sales)
    for text, by_spark in [
        ("SELECT shop, total(id) AS t FROM {s} GROUP BY shop", False),
        ("SELECT shop AS k, day, total(id) + 1 AS t FROM {s} x GROUP BY shop, day HAVING total(id) > 3", False),
        ("SELECT shop, total(id * 2) AS t FROM {s} GROUP BY shop", True),
        ("SELECT shop, total(id) AS t FROM {s} WHERE price > 5 AND day = 0 GROUP BY shop", False),
        ("SELECT shop, total(id) AS t FROM {s} WHERE price + 1 > 5 GROUP BY shop", True),
        ("SELECT shop, total(id) AS t FROM {s} AS x(shop, id, a, b, c) WHERE id > 2 GROUP BY shop", True),
        ("SELECT total(id) AS t FROM {s} AS x(shop, id, a, b, c)", True),
    ]:
        ours = session.sql(text, s=frame)
        assert (text, spark_reads(ours)) == (text, by_spark)
        assert rows_of(ours) == rows_of(spark.sql(text.replace("total(", "sum("), s=plain))


def test_files_are_named_in_from(remote, spark, sales):
    session = remote(declare_aggregate(Total), one_more)
    plain = spark.read.parquet(sales)
    for text, by_spark in [
        (f"SELECT shop, total(id) AS t FROM remote_parquet('{sales}') GROUP BY shop", False),
        (f"SELECT total(id) AS t FROM Remote_Parquet('{sales}', filter => 'shop > 2') x", False),
        (f"SELECT one_more(id) AS t FROM remote_parquet('{sales}') WHERE price > 70", True),
    ]:
        ours = session.sql(text)
        assert (text, spark_reads(ours)) == (text, by_spark)
        theirs = text.replace(f"Remote_Parquet('{sales}', filter => 'shop > 2') x", "{s} WHERE shop > 2")
        theirs = (
            theirs.replace(f"remote_parquet('{sales}')", "{s}")
            .replace("total(", "sum(")
            .replace("one_more(id)", "id + 1")
        )
        assert rows_of(ours) == rows_of(spark.sql(theirs, s=plain))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("", "line 1, column 15: remote_parquet takes at least one path"),
        ("1 + 1", "takes paths and filter => as texts, not 1 \\+ 1"),
        ("'x', columns => 'id'", "has no parameter columns, only filter"),
        ("'x', filter => 'a > 1', filter => 'b'", "takes one filter; join the conditions by AND"),
    ],
)
def test_arguments_of_files_in_from_are_checked(remote, arguments, why):
    with pytest.raises(PlanError, match=why):
        remote(one_more).sql(f"SELECT * FROM remote_parquet({arguments})")


CONDITIONS = [
    "n > 3", "n >= 3 AND n < 100", "3 < n", "n = 300", "n <> 0 OR n IS NULL", "NOT (n = 0)", "n IN (0, 1, 7)",
    "NOT n IN (0, 1)", "n BETWEEN 1 AND 5", "n BETWEEN 5 AND 1", "f > 0.5", "NOT (f > 0.5)", "f <> 0.5", "f = 0",
    "f < -1e3",
    "NOT f <> 0.5", "g > 0.1", "g = 0.5", "t = 'b'", "t > 'a' AND t <= 'c'", "t <> ''", "d >= '2024-01-01'",
    "d < DATE'2024-01-02' + INTERVAL 3 DAYS", "at > '2024-01-01 10:00:00'", "at <= DATE'2024-03-01'",
    "local >= TIMESTAMP_NTZ'2024-02-01 00:00:00'", "m > 1.5", "m = 2", "b", "NOT b", "day = 1", "day + 1 = 2 AND n > 2",
    "day = 0 OR n > 2", "N > 3L", "t IS NOT NULL", "NOT t IS NULL AND n > 2", "NOT (f IS NOT NULL OR b)",
    "n NOT IN (0, 1)", "n NOT BETWEEN 1 AND 5", "b = true", "b <> true", "day IS NOT NULL",
    "day IS NULL OR n IS NOT NULL",
]  # fmt: skip


@pytest.fixture
def mixed(spark, tmp_path) -> str:
    """Files with nulls and NaN in columns of many types, in small row groups, and a partition column."""
    frame = spark.range(0, 60, 1, 2).selectExpr(
        "id", "CAST(nullif(id % 9, 8) AS tinyint) AS n", "id % 2 AS day", "nullif(id % 3 = 0, id % 5 = 0) AS b",
        "CASE id % 5 WHEN 0 THEN double('NaN') WHEN 1 THEN null WHEN 2 THEN -0.0D ELSE 0.5D END AS f",
        "CASE id % 4 WHEN 0 THEN float('NaN') WHEN 1 THEN 0.1F ELSE 0.5F END AS g",
        "CASE id % 4 WHEN 0 THEN 'b' WHEN 1 THEN '' WHEN 2 THEN 'é' END AS t",
        "DATE'2023-12-30' + CAST(id % 9 AS int) AS d", "TIMESTAMP'2024-01-01' + make_interval(0, 0, 0, id) AS at",
        "TIMESTAMP_NTZ'2024-01-01 00:00:00' + make_interval(0, 0, 0, id) AS local",
        "CAST(id % 7 AS decimal(10, 2)) / 2 AS m",
    )  # fmt: skip
    frame.sort("id").write.option("parquet.block.size", 300).partitionBy("day").parquet(str(tmp_path / "mixed"))
    # Row groups with one value, and with it and NaN or null.
    for name in "fgtn":
        table = frame.toArrow().sort_by(name).drop_columns("day")
        pq.write_table(table, tmp_path / f"mixed/day=1/by-{name}.parquet", row_group_size=2)
    return str(tmp_path / "mixed")


@pytest.fixture
def no_push_down(spark):
    """Has Spark check conditions on rows alone: its dictionaries of row groups distinguish -0.0 from 0.0."""
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")
    yield
    spark.conf.unset("spark.sql.parquet.filterPushdown")


@pytest.mark.long
@pytest.mark.usefixtures("no_push_down")
def test_a_filter_keeps_the_rows_that_spark_keeps(remote, spark, mixed):
    session = remote(one_more)
    # In one query, or the test takes twice as long.
    kept = spark.read.parquet(mixed).selectExpr("id", *(f"({text}) AS c{i}" for i, text in enumerate(CONDITIONS)))
    rows = kept.collect()
    for i, text in enumerate(CONDITIONS):
        frame = session.read_parquet(mixed, columns=["id"], filter=text)
        ours = session.select(frame, session.function("one_more")("id").alias("y"))
        assert not spark_reads(ours)
        expected = sorted(row.id + 1 for row in rows if row[f"c{i}"])
        assert (text, sorted(row.y for row in ours.collect())) == (text, expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n + 1 > 3", r"n \+ 1 is not a column"),
        ("n > f", "f is not a constant"),
        ("f > rand()", r"rand\(\) is not a constant"),
        ("t > 3", "a value of type int32 is compared with a column of type string"),
        ("n = null", "a comparison with null is never true"),
        ("length(t) = 1", r"length\(t\) is not a column"),
        ("t LIKE 'a%'", "not a comparison"),
    ],
)
def test_a_filter_that_workers_cannot_check_is_refused(remote, mixed, text, why):
    with pytest.raises(PlanError, match=f"read_parquet: workers cannot check the condition .*({why}).*Use `where`"):
        remote(one_more).read_parquet(mixed, filter=text)


def test_the_values_of_a_list_are_computed_by_one_query(remote, spark, mixed, monkeypatch):
    queries, run = [], type(spark).sql

    def counted(self, text, *arguments, **fields):
        queries.append(text)
        return run(self, text, *arguments, **fields)

    session = remote(one_more)
    monkeypatch.setattr(type(spark), "sql", counted)
    session.read_parquet(mixed, filter=f"n IN ({', '.join(map(str, range(50)))})")
    assert len(queries) == 1
    session.read_parquet(mixed, filter="d IN ('2023-12-30', DATE'2023-12-31', '2024-01-01')")
    assert len(queries) == 3, "the last one casts values to the type of the column"


def test_a_filter_with_an_unknown_column_is_reported_by_spark(remote, mixed):
    with pytest.raises(PySparkException, match="UNRESOLVED_COLUMN"):
        remote(one_more).read_parquet(mixed, filter="nn > 1")


def test_files_and_row_groups_that_a_filter_excludes_are_not_read(remote, spark, tmp_path):
    for day in "12":
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"id": list(range(200))}), tmp_path / f"day={day}/one.parquet", row_group_size=100,
                       compression="none", use_dictionary=False)  # fmt: skip
    session = remote(one_more)
    frame = session.read_parquet(str(tmp_path), filter="day = 2 AND id >= 150")
    (tmp_path / "day=1/one.parquet").unlink()
    path = tmp_path / "day=2/one.parquet"
    begin = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[begin : begin + 8] = b"\xff" * 8
    listed = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(listed.st_atime_ns, listed.st_mtime_ns))
    ours = session.select(frame, "day", session.function("one_more")("id").alias("y"))
    assert sorted(row.y for row in ours.collect()) == list(range(151, 201))
