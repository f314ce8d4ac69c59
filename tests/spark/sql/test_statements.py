"""INSERT, CREATE TABLE AS and statement sets with remote functions."""

from functools import partial
from typing import Annotated

import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage

import udf_server as udf
from spark_client import PlanError
from spark_client.sql.once_inserted import InsertsRepeat
from tests.spark_client.executor.aggregate.world import Total
from udf_server import ArgumentTrait
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process

KEYED = Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]
CALLS = []
CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
STATE_STORE = "spark.sql.streaming.stateStore.providerClass"


class Numbered(udf.ProcessTableFunction):
    """Emits values, odd ones for the side output; records every call."""

    returns = "v bigint, side boolean"

    def eval(self, r: KEYED):
        CALLS.append(r.v)
        yield r.v, r.v % 2 == 1


@udf.scalar
def plus_ten(x: int) -> int:
    return x + 10


@pytest.fixture
def functions(spark, remote):
    CALLS.clear()
    rows = [("a", 1, 5), ("a", 2, 8), ("b", 3, 15), ("b", 4, 17)]
    frame = spark.createDataFrame(rows, "k string, v bigint, s bigint")
    frame.selectExpr("k", "v", "timestamp_seconds(s) AS at").createOrReplaceTempView("four")
    for table in ("main_out", "side_out"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")
    yield remote(declare_aggregate(Total), declare_process(Numbered), plus_ten)
    for table in ("main_out", "side_out"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")
    spark.catalog.dropTempView("four")


def rows_of(spark, table):
    return sorted(tuple(row) for row in spark.table(table).collect())


SET = """EXECUTE STATEMENT SET BEGIN
  INSERT INTO main_out SELECT k, v FROM numbered(r => TABLE {rows} PARTITION BY k, uid => 'once') WHERE NOT side;
  INSERT INTO side_out SELECT k, plus_ten(v) FROM numbered(r => TABLE {rows} PARTITION BY k, {uid}) WHERE side;
END;"""


def test_tables_are_made_and_filled_from_remote_aggregates_and_process_functions(functions, spark):
    functions.sql(
        "CREATE TABLE main_out USING parquet AS "
        "SELECT window_start AS at, plus_ten(total(v).sum) AS v "
        "FROM TABLE(TUMBLE(TABLE four, DESCRIPTOR(at), INTERVAL '10' SECONDS)) GROUP BY window_start, window_end"
    )
    functions.sql("INSERT INTO main_out (v, at) SELECT v, now() FROM numbered(r => TABLE four PARTITION BY k)")
    assert sorted(row.v for row in spark.table("main_out").collect()) == [1, 2, 3, 4, 13, 17]
    functions.sql("INSERT OVERWRITE main_out WITH t AS (SELECT total(v).sum AS s FROM four) SELECT now(), s FROM t")
    assert [row.v for row in spark.table("main_out").collect()] == [10]


def test_a_with_before_insert_is_seen_by_every_query_of_the_statement(functions, spark):
    spark.sql("SELECT 'x' AS k, 1000L AS v, now() AS at").createOrReplaceTempView("c")  # another c
    spark.sql("CREATE TABLE main_out (s BIGINT) USING parquet")
    c = "WITH c AS (SELECT * FROM four WHERE v > 2)"
    windows = "TABLE(TUMBLE(TABLE c, DESCRIPTOR(at), INTERVAL '1' HOUR))"
    cases = [
        (f"{c} INSERT {{}} main_out SELECT total(v).sum FROM c", [7]),
        (f"{c} INSERT {{}} main_out SELECT total(v).sum FROM four WHERE v IN (SELECT v FROM c)", [7]),
        (f"{c} INSERT {{}} main_out SELECT (total(v) OVER ()).sum FROM c", [7, 7]),
        (f"{c} INSERT {{}} main_out SELECT total(v).sum FROM {windows} GROUP BY window_start, window_end", [7]),
        (f"{c} INSERT {{}} main_out SELECT v FROM numbered(r => TABLE c PARTITION BY k)", [3, 4]),
        (f"{c} INSERT {{}} main_out SELECT plus_ten(v) FROM c WHERE plus_ten(v) > 13", [14]),
        (f"{c} INSERT {{}} main_out WITH d AS (SELECT v + 1 AS v FROM c) SELECT total(v).sum FROM d", [9]),
        (f"{c} INSERT {{}} main_out WITH c AS (SELECT v + 1 AS v FROM c) SELECT total(v).sum FROM c", [9]),
        (f"{c} INSERT {{}} main_out SELECT total(v).sum FROM c UNION ALL SELECT v FROM c", [3, 4, 7]),
        ("EXECUTE STATEMENT SET BEGIN " + c + " INSERT {} main_out SELECT total(v).sum FROM c; END", [7]),
    ]
    for number, (statement, expected) in enumerate(cases):
        functions.sql(statement.format("OVERWRITE" if number % 2 else "INTO"))
        assert sorted(row.s for row in spark.table("main_out").collect()) == expected, statement
        spark.sql("TRUNCATE TABLE main_out")
    spark.catalog.dropTempView("c")


def test_a_partition_that_exists_is_kept_by_if_not_exists(functions, spark):
    spark.sql("CREATE TABLE main_out (s bigint, p int) USING parquet PARTITIONED BY (p)")
    for query in (
        "INSERT OVERWRITE main_out PARTITION (p = 1) IF NOT EXISTS SELECT total(v).sum FROM four",
        "WITH four AS (SELECT 7L AS v) INSERT OVERWRITE main_out PARTITION (p = 2) IF NOT EXISTS "
        "SELECT total(v).sum FROM four",
        "INSERT OVERWRITE main_out PARTITION (p = 1) IF NOT EXISTS SELECT total(v).sum + 1 FROM four",
    ):
        functions.sql(query)
    assert rows_of(spark, "main_out") == [(7, 2), (10, 1)]
    with pytest.raises(PlanError, match="INSERT of a query that is no list of VALUES"):
        functions.sql("WITH c AS (SELECT total(v) FROM four) INSERT INTO main_out VALUES (1, 2)")


def test_adjacent_texts_are_one_text_except_in_the_options_of_a_table(functions, spark):
    functions.sql(
        "CREATE TABLE main_out USING csv OPTIONS ('sep' '|', header 'true') AS "
        "SELECT total(v).sum AS s, 'a' '|' 'b' AS t FROM four"
    )
    assert rows_of(spark, "main_out") == [(10, "a|b")]


def test_one_uid_of_a_statement_set_is_one_operator_with_several_outputs(functions, spark):
    for table in ("main_out", "side_out"):
        spark.sql(f"CREATE TABLE {table} (k STRING, v BIGINT) USING parquet")
    functions.sql(SET.format(rows="four", uid="uid => 'once'"))
    assert (rows_of(spark, "main_out"), rows_of(spark, "side_out")) == ([("a", 2), ("b", 4)], [("a", 11), ("b", 13)])
    assert sorted(CALLS) == [1, 2, 3, 4]
    told = functions.explain(SET.format(rows="four", uid="uid => 'once'"))
    assert "uid 'once': one operator, 2 outputs, computed once" in told
    assert len(rows_of(spark, "main_out")) == 2
    with pytest.raises(PlanError, match=r"line 3, column \d+: Duplicate unique identifier 'once'"):
        functions.sql(SET.format(rows="four", uid="uid => 'once'").replace("TABLE four", "(SELECT * FROM four)", 1))
    with pytest.raises(PlanError, match="line 2, column 3: a statement set takes INSERT statements, not SELECT"):
        functions.sql("EXECUTE STATEMENT SET BEGIN\n  SELECT 1; END")
    with pytest.raises(PlanError, match="must end with END"):
        functions.sql("EXECUTE STATEMENT SET BEGIN INSERT INTO main_out SELECT 1, 2")


def test_a_statement_set_on_a_stream_is_one_query_with_several_outputs(functions, spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.csv").write_text("a,1\na,2\nb,3\n")
    stream = spark.readStream.schema("k string, v bigint").csv(str(tmp_path / "in"))
    stream.createOrReplaceTempView("flow")
    for table in ("main_out", "side_out"):
        spark.sql(f"CREATE TABLE {table} (k STRING, v BIGINT) USING parquet")
    text = SET.format(rows="flow", uid="uid => 'once'")
    spark.conf.set(STATE_STORE, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    with pytest.raises(PlanError, match=r"spark\.sql\.streaming\.checkpointLocation: set it"):
        functions.sql(text)
    spark.conf.set(CHECKPOINTS, str(tmp_path / "checkpoints"))
    try:
        with pytest.raises(PlanError, match="may use only SELECT and WHERE, found group"):
            functions.sql(text.replace("WHERE NOT side", "GROUP BY ALL"))
        (started,) = functions.sql(text).collect()
        query = spark.streams.get(started.id)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    finally:
        spark.conf.unset(CHECKPOINTS)
        spark.conf.unset(STATE_STORE)
        spark.catalog.dropTempView("flow")
    assert started.name == "once"
    assert (rows_of(spark, "main_out"), rows_of(spark, "side_out")) == ([("a", 2)], [("a", 11), ("b", 13)])
    assert sorted(CALLS) == [1, 2, 3]


@pytest.fixture
def flow(spark, tmp_path):
    """Returns what adds a file to the stream `flow`, and what runs a statement set over what is there."""
    (tmp_path / "in").mkdir()
    spark.readStream.schema("k string, v bigint").csv(str(tmp_path / "in")).createOrReplaceTempView("flow")
    spark.conf.set(STATE_STORE, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    spark.conf.set(CHECKPOINTS, str(tmp_path / "checkpoints"))
    yield lambda name, text: (tmp_path / "in" / name).write_text(text), partial(_run, spark)
    spark.conf.unset(CHECKPOINTS)
    spark.conf.unset(STATE_STORE)
    spark.catalog.dropTempView("flow")


def _run(spark, functions, text):
    (started,) = functions.sql(text).collect()
    query = spark.streams.get(started.id)
    try:
        query.processAllAvailable()
    finally:
        query.stop()


INSERTS = """EXECUTE STATEMENT SET BEGIN
  INSERT INTO main_out SELECT v, k FROM numbered(r => TABLE flow PARTITION BY k, uid => 'set');
  INSERT INTO main_out SELECT v + 100, k FROM numbered(r => TABLE flow PARTITION BY k, uid => 'set');
  INSERT INTO side_out (k, v)
  SELECT k, v FROM numbered(r => TABLE flow PARTITION BY k, uid => 'set') WHERE {where}; END"""


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "csv", "orc PARTITIONED BY (k)"])
def test_a_micro_batch_that_runs_again_is_in_each_table_once(functions, spark, flow, form):
    """The last statement fails after the others, in the first micro-batch and in a later one."""
    add, run = flow
    for table in ("main_out", "side_out"):
        spark.sql(f"CREATE TABLE {table} (v BIGINT, k STRING) USING {form}")
    spark.sql("INSERT INTO main_out VALUES (0, 'a')")
    down = INSERTS.format(where="raise_error('down') IS NULL")
    for number, rows in enumerate(("a,1\nb,2\n", "a,3\n")):
        add(f"{number}.csv", rows)
        with pytest.raises(Exception, match="down"):
            run(functions, down)
        run(functions, INSERTS.format(where="TRUE"))
    expected = [(1, "a"), (2, "b"), (3, "a")]
    assert rows_of(spark, "side_out") == sorted(expected)
    assert rows_of(spark, "main_out") == sorted([(0, "a"), *expected, *((v + 100, k) for v, k in expected)])


@pytest.mark.long
def test_a_new_checkpoint_does_not_touch_what_another_query_has_inserted(functions, spark, flow, tmp_path):
    add, run = flow
    for table in ("main_out", "side_out"):
        spark.sql(f"CREATE TABLE {table} (v BIGINT, k STRING) USING parquet")
    add("0.csv", "a,1\n")
    for checkpoint in ("one", "two"):
        spark.conf.set(CHECKPOINTS, str(tmp_path / checkpoint))
        run(functions, INSERTS.format(where="TRUE"))
    assert rows_of(spark, "side_out") == [(1, "a"), (1, "a")]


class Kept(DataSource):
    """A table of a kind that cannot tell which rows are a repetition."""

    @classmethod
    def name(cls):
        return "kept_elsewhere"

    def schema(self):
        return "v bigint, k string"

    def writer(self, schema, overwrite):
        return KeptRows()


class KeptRows(DataSourceWriter):
    def write(self, iterator):
        list(iterator)
        return WriterCommitMessage()


@pytest.mark.long
def test_a_table_in_which_a_micro_batch_may_be_twice_is_warned_of(functions, spark, flow):
    add, run = flow
    spark.dataSource.register(Kept)
    spark.sql("CREATE TABLE main_out USING kept_elsewhere")
    spark.sql("CREATE TABLE side_out (v BIGINT, k STRING) USING parquet")
    add("0.csv", "a,1\n")
    with pytest.warns(InsertsRepeat, match="main_out: if the query fails .* it is a table of another kind"):
        run(functions, INSERTS.format(where="TRUE"))
    assert rows_of(spark, "side_out") == [(1, "a")]


def test_a_table_argument_has_window_functions_and_remote_aggregates(functions):
    windowed = "TABLE(TUMBLE(TABLE four, DESCRIPTOR(at), INTERVAL '10' SECONDS))"
    query = f"SELECT k, v FROM numbered(r => {windowed} PARTITION BY k) ORDER BY v"
    assert [row.v for row in functions.sql(query).collect()] == [1, 2, 3, 4]
    query = (
        f"WITH w AS (SELECT window_end, k, total(v).sum AS v FROM {windowed} GROUP BY window_start, window_end, k) "
        "SELECT k, v FROM numbered(r => TABLE w PARTITION BY k)"
    )
    assert sorted(functions.sql(query).collect()) == [Row(k="a", v=3), Row(k="b", v=7)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM numbered(r =>\n  (SELECT * FROM numbered(\n nobody => 1)) PARTITION BY k)",
         "line 2, column 18: "),
        ("SELECT * FROM numbered(\nr => (SELECT k, total(v, k) AS v\nFROM four GROUP BY k) PARTITION BY k)",
         "line 2, column 17: .* takes 1 arguments, got 2"),
        ("SELECT v FROM TABLE(TUMBLE(\nTABLE (SELECT total(v, v) AS v FROM four), DESCRIPTOR(at), INTERVAL '1' DAY))",
         "line 2, column 15: .* takes 1 arguments"),
    ],
)  # fmt: skip
def test_an_error_inside_a_table_argument_has_its_place_in_the_text(functions, query, message):
    with pytest.raises(PlanError, match=message):
        functions.sql(query)


def test_a_directory_is_written_from_a_process_table_function(functions, spark, tmp_path):
    out = f"{tmp_path}/rows"
    functions.sql(
        f"INSERT OVERWRITE DIRECTORY '{out}' USING csv OPTIONS (header 'true', 'sep' ';') "
        "SELECT k, v FROM numbered(r => TABLE four PARTITION BY k) WHERE side"
    )
    assert sorted(map(tuple, spark.read.csv(out, header=True, sep=";").collect())) == [("a", "1"), ("b", "3")]


def test_a_directory_may_be_an_option(functions, spark, tmp_path):
    options = f"OPTIONS ('path' '{tmp_path}/rows')"
    functions.sql(f"INSERT OVERWRITE DIRECTORY USING csv {options} SELECT total(v).sum AS s FROM four")
    assert [row[0] for row in spark.read.csv(f"{tmp_path}/rows").collect()] == ["10"]


def test_a_query_is_described_and_not_explained_by_spark(functions):
    for describe in ("DESCRIBE QUERY", "DESC", "describe"):
        described = functions.sql(f"{describe} WITH c AS (FROM four) SELECT k, total(v).sum AS s FROM c GROUP BY k")
        assert [tuple(row) for row in described.collect()] == [("k", "string", None), ("s", "bigint", None)]
    for explain in ("EXPLAIN", "EXPLAIN EXTENDED"):
        with pytest.raises(PlanError, match=r"EXPLAIN: .* call remote\.explain\(query\)"):
            functions.sql(f"{explain} SELECT total(v).sum AS s FROM four")
    assert "plus_ten" in functions.sql("EXPLAIN SELECT plus_ten(v) FROM four").first()[0]


@pytest.mark.parametrize(
    "source",
    ["TABLE(numbered(r => TABLE four PARTITION BY k)) n", "(SELECT 1), LATERAL numbered(TABLE four PARTITION BY k) n"],
)
def test_a_call_stands_in_table_and_after_lateral(functions, source):
    assert sorted(row.v for row in functions.sql(f"SELECT n.v FROM {source}").collect()) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT k,\n numbered(r => TABLE four) AS n FROM four", "line 2, column 2: numbered: .* in FROM or a JOIN"),
        ("SELECT k FROM four WHERE v IN (numbered(TABLE four))", "line 1, column 32: numbered: .* in FROM or a JOIN"),
        ("SELECT k FROM four LATERAL VIEW numbered(TABLE four) AS n", "column 33: numbered: .* in FROM or a JOIN"),
        ("SELECT * FROM four t, LATERAL (SELECT v FROM numbered((SELECT * FROM four WHERE k = t.k) PARTITION BY k))",
         "line 1, column 46: .*numbered: .* cannot refer to outer columns"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_stand_where_it_does_is_refused_by_its_name(functions, query, message):
    with pytest.raises(PlanError, match=message) as refused:
        functions.sql(query)
    assert "__remote" not in str(refused.value)
