"""Errors of the first hour: each message says what was wrong and what to write instead."""

import os
import re
import subprocess
import sys
import traceback
from typing import Annotated

import pytest
from pyspark.errors import AnalysisException, ParseException, PythonException
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import NotARemoteUdfServer, PlanError, Security, UnknownFunction, Window, connect, root_cause
from tests.spark.process_streams import ALL as PROCESS_FUNCTIONS
from tests.spark.process_streams import PROVIDER, stream_of, write
from tests.spark_client.executor.aggregate.world import ALL as AGGREGATES
from tests.udf_server.secured import Pki
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process


@udf.scalar
def plus_ten(x: int) -> int:
    return x + 10


@udf.scalar
def parse(text: str) -> int:
    return int(text)


@udf.scalar
async def needs_model(x: int) -> int:
    return x


@needs_model.on_open
def load():
    raise FileNotFoundError("/models/geo.bin")


@pytest.fixture
def functions(remote):
    return remote(plus_ten, parse, needs_model, *map(declare_aggregate, AGGREGATES))


def test_a_failed_connection_is_one_traceback(spark):
    with pytest.raises(Exception, match=r"no remote-udf server at 127\.0\.0\.1:1 within 0\.3 s") as caught:
        connect(spark, "127.0.0.1:1", connect_seconds=0.3)
    assert "".join(traceback.format_exception(caught.value)).count("Traceback (most recent call last)") == 1


@pytest.fixture
def pki(tmp_path):
    return Pki(tmp_path)


def test_a_server_with_tls_and_a_client_without_it_is_named(spark, serve, pki):
    certificate, key = pki.issue("server")
    target = serve(plus_ten, tls_certificate=certificate, tls_key=key).target
    with pytest.raises(NotARemoteUdfServer, match=r"uses TLS: connect\(\.\.\., security=Security\(tls=True\)\)"):
        connect(spark, target, connect_seconds=1)
    with pytest.raises(NotARemoteUdfServer, match=r"certificate of the server at .* is not accepted: set ca_file"):
        connect(spark, target, connect_seconds=1, security=Security(tls=True))
    assert connect(spark, target, security=Security(ca_file=pki.ca)).function("plus_ten")


def test_a_client_with_tls_and_a_server_without_it_is_named(spark, serve):
    target = serve(plus_ten).target
    with pytest.raises(NotARemoteUdfServer, match="does not use TLS: connect without tls, ca_file"):
        connect(spark, target, security=Security(tls=True))


@pytest.mark.parametrize(
    ("query", "place", "near"),
    [
        ("SELECT plus_tenn(id) FROM range(3)", "line 1, column 8", "did you mean plus_ten"),
        ("SELECT id,\n  Totl(id) FROM range(3) GROUP BY id", "line 2, column 3", "did you mean total"),
        ("SELECT xyzzy(id) FROM range(3)", "line 1, column 8", "(known: "),
        ("SELECT total(plus_tenn(id)) FROM range(3)", "line 1, column 14", "did you mean plus_ten"),
        ("SELECT * FROM sesions(3)", "line 1, column 15", "(known: "),
    ],
)
def test_a_typo_in_remote_sql_lists_the_remote_functions(functions, query, place, near):
    with pytest.raises(UnknownFunction, match=re.escape("neither Spark nor the server has a function")) as caught:
        functions.sql(query).collect()
    assert str(caught.value).startswith(place)
    assert near in str(caught.value)


@pytest.mark.parametrize(
    "call",
    ["totl(TABLE three PARTITION BY id)", "totl(1, rows => TABLE three)", "range(1) JOIN totl(TABLE three)"],
)
def test_a_typo_in_the_name_of_a_function_of_tables_lists_the_remote_functions(functions, spark, call):
    spark.range(3).createOrReplaceTempView("three")
    with pytest.raises(UnknownFunction, match=r"the server has no function 'totl' [(]did you mean total") as caught:
        functions.sql(f"SELECT * FROM {call}").collect()
    assert str(caught.value).startswith(f"line 1, column {15 + call.index('totl')}: ")
    assert str(caught.value).endswith("a table function of Spark's own takes TABLE(t)")


def test_a_function_of_tables_with_the_name_of_one_of_sparks_is_called_with_its_version(remote, spark):
    class Lag(udf.ProcessTableFunction):
        returns = "n bigint"

        def eval(self, rows: Annotated[udf.Row, udf.ArgumentTrait.ROW_SEMANTIC_TABLE]):
            yield (rows.id + 1,)

    session = remote(declare_process(Lag))
    spark.range(3).createOrReplaceTempView("three")
    with pytest.raises(PlanError, match=r"LAG is Spark's own function here, .*, write `lag@1`") as caught:
        session.sql("SELECT * FROM LAG(TABLE three)")
    assert str(caught.value).startswith("line 1, column 15: ")
    assert sorted(row.n for row in session.sql("SELECT n FROM `lag@1`(TABLE three)").collect()) == [1, 2, 3]


@pytest.mark.parametrize("call", ["{}", "TABLE({})"])
def test_a_typo_in_the_name_of_a_window_function_suggests_it(functions, spark, call):
    spark.sql("SELECT TIMESTAMP '2026-01-01 00:00:00' AS ts").createOrReplaceTempView("timed")
    source = call.format("tumbel(TABLE timed, DESCRIPTOR(ts), INTERVAL '1' DAY)")
    with pytest.raises(UnknownFunction, match=r"the server has no function 'tumbel' [(]did you mean TUMBLE"):
        functions.sql(f"SELECT * FROM {source}").collect()


def test_a_syntax_error_beside_a_table_in_parentheses_is_sparks(functions, spark):
    spark.range(3).createOrReplaceTempView("three")
    for query in ("SELECT * FROM (TABLE three) WHERE id (", "WITH a AS (TABLE three) SELECT 1 FROM a WHERE (("):
        with pytest.raises(ParseException, match="PARSE_SYNTAX_ERROR"):
            functions.sql(query)


def test_other_errors_of_remote_sql_are_those_of_spark(functions):
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        functions.sql("SELECT plus_ten(idd) FROM range(3)")


@pytest.mark.parametrize("called", ["parse(text)", "total(1)"])
def test_a_remote_function_in_sparks_own_sql_is_explained_by_the_root_cause(functions, spark, called):
    name = f"unregistered_{called}"
    with pytest.raises(Exception, match="UNRESOLVED_ROUTINE") as caught:
        spark.sql(f"SELECT {name} FROM VALUES ('1') AS t(text)").collect()
    shown = root_cause(caught.value).splitlines()
    assert "unregistered_" in shown[0]
    assert "use remote.sql in place of spark.sql" in shown[-1]
    assert len(shown) == 2


@pytest.mark.connect
def test_an_aggregate_that_is_passed_to_spark_names_group_by_and_sql(functions, spark):
    total, frame = functions.function("total"), spark.range(3)
    passed = [
        lambda: frame.groupBy("id").agg(total("id")).collect(),
        lambda: frame.agg(total("id").alias("t")).collect(),
        lambda: frame.select(total("id")).collect(),
        lambda: frame.select("id", total("id").filter(F.col("id") > 0)).collect(),
        lambda: frame.withColumn("t", total("id")).collect(),
        lambda: frame.where(F.abs(total("id")) > 1).collect(),
        lambda: functions.select(frame, total("id")).collect(),
    ]
    instead = r"total@1 is a remote aggregate.*remote\.group_by\(df.*remote\.sql"
    for attempt in passed:
        with pytest.raises((AnalysisException, PlanError), match=instead):
            attempt()
    with pytest.raises(AnalysisException, match=r"over a window, alone or in an expression: use remote\.with_columns"):
        frame.select(total("id").over(Window.partitionBy("id"))).collect()
    with pytest.raises(PlanError, match=r"column 't': function total@1 is an aggregate: use remote\.group_by"):
        functions.with_columns(frame, {"t": total("id")})
    # And it is still what the remote session takes, with all that can be said of it.
    found = functions.group_by(frame).agg(total("id").filter(F.col("id") > 0).alias("t"), F.sum("id").alias("s"))
    assert [(row.t.sum, row.s) for row in found.collect()] == [(3, 3)]


@pytest.mark.connect
def test_an_argument_that_is_no_column_and_no_literal_is_refused(functions, spark):
    plus, total = functions.function("plus_ten"), functions.function("total")
    for function in (plus, lambda argument: functions.group_by(spark.range(3)).agg(total(argument))):
        with pytest.raises(PlanError, match=r"a column, the name of a column or a literal.*, got a Python fun"):
            function(lambda x: x * 2)
        with pytest.raises(PlanError, match=r"got <object .* of type object"):
            function(object())


@pytest.mark.connect
def test_a_column_of_the_frame_before_is_named_in_the_error(functions, spark):
    plus, total, frame = functions.function("plus_ten"), functions.function("total"), spark.range(3)
    added = functions.with_columns(frame, {"y": plus("id")})
    window = Window.partitionBy("y")
    later = [
        lambda: functions.with_columns(added, {"z": plus(frame["id"])}).collect(),
        lambda: functions.select(added, frame["id"], plus("y")).collect(),
        lambda: functions.group_by(added, frame["id"]).agg(total("y")).collect(),
        lambda: functions.group_by(added, "y").agg(total(frame["id"])).collect(),
        lambda: functions.with_columns(added, {"z": total(frame["id"]).over(window)}).collect(),
    ]
    for attempt in later:
        with pytest.raises(
            PlanError, match=r"column 'id': the column was taken from another DataFrame.*F\.col\(\"id\"\)"
        ):
            attempt()
    with pytest.raises(AnalysisException) as caught:
        added.select(frame["id"]).collect()
    assert "the column was taken from another DataFrame" in root_cause(caught.value)


@pytest.mark.connect
def test_arithmetic_on_a_call_in_with_columns_says_where_to_compute(functions, spark):
    plus = functions.function("plus_ten")
    with pytest.raises(PlanError, match="column 'y': expected the call of a remote function and nothing") as caught:
        functions.with_columns(spark.range(3), {"y": plus("id") + 1})
    assert "java" not in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_a_state_store_that_was_never_set_is_named(remote, spark, tmp_path):
    functions = remote(*map(declare_process, PROCESS_FUNCTIONS))
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", "a", [("x", 1, 5)])
    before = spark.conf.get(PROVIDER)
    spark.conf.unset(PROVIDER)
    try:
        with pytest.raises(PlanError, match=r"found org\.apache\.spark\.\S+StateStoreProvider: spark\.conf\.set\("):
            functions.process("sessions", stream_of(spark, tmp_path / "in"), partition_by="k", on_time="ts")
    finally:
        spark.conf.set(PROVIDER, before)


def test_an_open_hook_that_fails_is_not_an_unavailable_server(serve, spark):
    session = connect(spark, serve(needs_model).target, connect_seconds=1)
    with pytest.raises(PythonException) as caught:
        session.with_columns(spark.range(0, 3, 1, 1), {"y": session.function("needs_model")("id")}).collect()
    assert "ServerUnavailable" not in str(caught.value)
    first = root_cause(caught.value).splitlines()[0]
    assert "OPEN_FAILED: function needs_model@1: open failed: FileNotFoundError: /models/geo.bin" in first


def test_the_root_cause_of_a_failed_row_is_its_call_and_the_place_in_the_function(functions, spark):
    frame = spark.createDataFrame([("1",), ("two",)], "text string").coalesce(1)
    with pytest.raises(PythonException) as caught:
        frame.select(functions.function("parse")("text")).collect()
    assert len(str(caught.value).splitlines()) > 10
    lines = root_cause(caught.value).splitlines()
    assert lines == [
        "FunctionFailed: parse(text='two') of parse@1 failed: FUNCTION_ERROR: ValueError: invalid literal for int() "
        "with base 10: 'two' (1 attempt)",
        lines[1],
    ]
    assert re.fullmatch(r"  \S+test_first_errors\.py, line \d+, in parse: return int\(text\)", lines[1])


def test_the_root_cause_is_the_same_if_a_query_writes_or_streams(functions, spark, tmp_path):
    parse_ = functions.function("parse")
    frame = spark.createDataFrame([("two",)], "text string")
    with pytest.raises(Exception, match="parse@1") as written:
        frame.select(parse_("text").alias("n")).write.parquet(str(tmp_path / "out"))
    frame.write.text(str(tmp_path / "in"))
    stream = spark.readStream.text(str(tmp_path / "in")).select(parse_("value").alias("n"))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(Exception, match="parse@1") as streamed:
        query.awaitTermination()
    for caught in (written, streamed):
        assert root_cause(caught.value).startswith("FunctionFailed: parse(text='two') of parse@1 failed: FUN")
        assert root_cause(caught.value).count("\n") == 1


EXECUTORS = """
import os, sys
from pyspark.sql import SparkSession
from spark_client import connect, root_cause

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
plus_ten = connect(spark, sys.argv[1]).function("plus_ten")
for number, python in enumerate(sys.argv[2:]):
    spark.sparkContext.pythonExec = python
    try:
        spark.range(1).select(plus_ten.with_options(max_attempts=1 + number)("id")).collect()
        print("no error")
    except Exception as error:
        print(root_cause(error))
    print("--")
"""


WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
"""


@pytest.mark.slow
def test_executors_with_another_python_or_without_packages_are_explained(serve, tmp_path):
    def python_without(name, *modules):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f"BLOCKED = {modules!r}\n{WITHOUT}")
        script = folder / "python"
        script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
        script.chmod(0o755)
        return str(script)

    pythons = [
        "/nowhere/python3.12",
        python_without("client", "spark_client"),
        python_without("others", "pandas", "sqlglot"),
    ]
    command = [sys.executable, "-c", EXECUTORS, serve(plus_ten).target, *pythons]
    variables = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    missing, client, others = done.stdout.split("--\n")[:3]
    assert "/nowhere/python3.12" in missing.splitlines()[0]
    assert "PYSPARK_PYTHON, or spark.pyspark.python, names a Python that the executors do not have" in missing
    assert "spark_client" in client.splitlines()[0]
    assert "install the client for the Python of the executors: pip install 'remote-udf[spark]'" in client
    # PySpark 4.3 does without pandas there; ours does without the parser of SQL.
    assert others == "no error\n" or ("andas" in others and "pip install 'remote-udf[spark]'" in others)
    assert all(text.count("\n") <= 3 for text in (missing, client, others))
