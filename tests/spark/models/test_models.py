"""Models in SQL: CREATE MODEL, ML_PREDICT and VECTOR_SEARCH, on tables and streams."""

from dataclasses import dataclass
from unittest import mock

import pytest

import udf_server as udf
from spark_client import PlanError, UnknownFunction
from spark_client.planning.rows.planner import plan_with_columns
from tests.spark.sales import Longest
from udf_server.aggregate.declaration import declare_aggregate

CALLED = []
"""The texts that `judge` was called with."""


@dataclass
class Verdict:
    label: str
    score: float


@udf.scalar(nulls="skip", deterministic=False)
async def judge(text: str, labels: list[str], shift: int = 0) -> Verdict:
    CALLED.append(text)
    if text == "bad":
        raise ValueError("no verdict")
    return Verdict(labels[(len(text) + shift) % len(labels)], float(len(text)))


@udf.scalar(nulls="skip")
async def joined(text: str, more: int | str) -> str:
    return f"{text}{more!r}"


CONSTANTS = """
    small tinyint, share float, price decimal(10,2), day date, at timestamp, clock timestamp_ntz,
    point struct<x:int,tags:array<string>>, weights map<int,float>, grid array<array<bigint>>
"""


@udf.scalar(parameters=f"text string, {CONSTANTS}", returns=f"struct<{CONSTANTS}>")
async def constants(text, small, share, price, day, at, clock, point, weights, grid):
    return {name: value for name, value in locals().items() if name != "text"}


@udf.scalar(nulls="skip")
async def letters(text: str) -> list[float]:
    return [float(text.count(letter)) for letter in "abc"]


WITH = """WITH ('function' = 'judge', 'labels' = '["even", "odd"]')"""
TEXTS = [(1, "abba"), (2, "cab"), (3, None)]
DOCS = [(1, "aabb"), (2, "cc"), (3, "abc")]


@pytest.fixture
def session(remote, spark):
    CALLED.clear()
    spark.createDataFrame(TEXTS, "id int, text string").createOrReplaceTempView("texts")
    spark.createDataFrame(DOCS, "doc int, body string").createOrReplaceTempView("docs")
    yield remote(judge, joined, constants, letters, declare_aggregate(Longest()))
    for view in ("texts", "docs", "answers"):
        spark.catalog.dropTempView(view)


def rows(frame):
    return sorted((tuple(row) for row in frame.collect()), key=str)


@pytest.mark.connect
def test_a_model_adds_its_columns_to_the_rows_of_a_table(session):
    session.sql(f"CREATE MODEL m INPUT (t STRING) OUTPUT (parity STRING, size DOUBLE) {WITH}")
    found = session.sql("SELECT * FROM ML_PREDICT(TABLE texts, MODEL m, DESCRIPTOR(text))")
    assert found.columns == ["id", "text", "parity", "size"]
    assert rows(found) == [(1, "abba", "even", 4.0), (2, "cab", "odd", 3.0), (3, None, None, None)]


@pytest.mark.parametrize(
    "source",
    [
        "TABLE(ML_PREDICT(TABLE texts, MODEL `a model`, DESCRIPTOR(text))) AS p",
        "ml_predict(INPUT => TABLE texts, MODEL => MODEL `A MODEL`, ARGS => DESCRIPTOR(`TEXT`)) p",
        "ML_PREDICT(MODEL => MODEL `a model`, ARGS => DESCRIPTOR(text), INPUT => TABLE (SELECT * FROM texts)) p",
        "(SELECT * FROM ML_PREDICT(TABLE texts, MODEL `a model`, DESCRIPTOR(text))) p",
    ],
)
def test_a_prediction_is_written_in_many_ways(session, source):
    session.sql(f"create or replace temporary model `a model` {WITH};")
    query = f"SELECT p.label, p.score FROM {source} JOIN docs ON doc = id WHERE id < 3"
    assert rows(session.sql(query)) == [("even", 4.0), ("odd", 3.0)]


def test_each_row_is_called_once_however_often_its_result_is_used(session):
    session.sql(f"CREATE MODEL m {WITH}")
    query = """
        SELECT upper(label), label || score FROM ML_PREDICT(TABLE texts, MODEL m, DESCRIPTOR(text))
        WHERE label = 'even' AND score > 1
    """
    assert rows(session.sql(query)) == [("EVEN", "even4.0")]
    assert sorted(CALLED) == ["abba", "cab"]


def test_a_column_that_is_there_already_gets_a_number(session):
    session.sql(f"CREATE MODEL m OUTPUT (Id STRING, id0 DOUBLE) {WITH}")
    found = session.sql("SELECT * FROM ML_PREDICT(TABLE texts, MODEL m, DESCRIPTOR(text))")
    assert found.columns == ["id", "text", "Id0", "id00"]


def test_a_function_is_a_model_too_and_predictions_are_grouped_by_remote_aggregates(session):
    query = """
        WITH vectors AS (SELECT * FROM ML_PREDICT(TABLE texts, MODEL letters, DESCRIPTOR(text)))
        SELECT size(letters), longest(text) FROM vectors WHERE text IS NOT NULL GROUP BY size(letters)
    """
    assert rows(session.sql(query)) == [(3, "abba")]


def test_options_of_a_model_hold_for_its_calls(session, spark):
    session.sql(f"CREATE MODEL m {WITH[:-1]}, 'shift' = '1', 'on-error' = 'column', 'max-attempts' = '1')")
    spark.createDataFrame([("bad",), ("abba",)], "text string").createOrReplaceTempView("answers")
    found = session.sql("SELECT text, label, m_error.message FROM ML_PREDICT(TABLE answers, MODEL m, DESCRIPTOR(text))")
    (good, bad) = rows(found)
    assert good == ("abba", "odd", None)
    assert bad[:2] == ("bad", None) and "no verdict" in bad[2]


@pytest.mark.connect
@pytest.mark.parametrize(
    ("config", "stages"),
    [
        ("MAP['max-concurrent-operations', '7', 'timeout', '9 s', 'async', 'true']", ("7", "9 s")),
        ("MAP['ASYNC', 'FALSE', 'retry-on', 'ValueError']", ("1", "5 s")),
    ],
)
def test_the_config_of_a_prediction_overrides_the_options_of_its_model(session, spark, config, stages):
    session.sql(f"CREATE MODEL m {WITH[:-1]}, 'timeout' = '5 s')")
    with mock.patch("spark_client.models.model_calls.plan_with_columns", wraps=plan_with_columns) as planned:
        query = f"SELECT label FROM ML_PREDICT(TABLE texts, MODEL m, DESCRIPTOR(text), CONFIG => {config})"
        assert len(session.sql(query.replace("CONFIG => ", "")).collect()) == 3
    options = planned.call_args.args[4]
    assert (options["buffer-capacity"], options["timeout"]) == stages


def test_a_model_is_altered_and_written_as_a_statement(session):
    written = "INPUT (`t` string)\nOUTPUT (`parity` string, `size` double)\nCOMMENT 'it\\'s'"
    session.sql(f"CREATE MODEL m {written} {WITH}")
    session.sql("ALTER MODEL m SET ('timeout' = '5 s', 'shift' = '1')")
    session.sql("ALTER MODEL m RESET ('shift')")
    session.sql("ALTER MODEL M RENAME TO `a model`")
    session.sql("ALTER MODEL IF EXISTS m RENAME TO n")
    (shown,) = session.sql("SHOW CREATE MODEL `a model`").first()
    labels = "'labels' = '[\"even\", \"odd\"]'"
    assert (
        shown
        == f"CREATE MODEL `a model`\n{written}\nWITH (\n  'function' = 'judge',\n  {labels},\n  'timeout' = '5 s'\n)"
    )
    session.sql("DROP MODEL `a model`")
    session.sql(shown)
    assert session.sql("SHOW CREATE MODEL `A MODEL`").first()[0] == shown
    query = "SELECT id, parity FROM ML_PREDICT(TABLE texts, MODEL `a model`, DESCRIPTOR(text)) WHERE id < 3"
    assert rows(session.sql(query)) == [(1, "even"), (2, "odd")]


@pytest.mark.connect
def test_the_error_column_has_the_name_of_the_model_and_a_number_if_the_table_has_it(session):
    session.sql("CREATE MODEL m OUTPUT (sizes ARRAY<DOUBLE>) WITH ('function' = 'letters', 'on-error' = 'column')")
    session.sql(f"CREATE MODEL n {WITH[:-1]}, 'on-error' = 'column')")
    for table, number in (("texts", ""), ("(SELECT text, id AS M_error, id AS n_error FROM texts)", "0")):
        source = f"ML_PREDICT(TABLE ML_PREDICT(TABLE {table}, MODEL m, DESCRIPTOR(text)), MODEL n, DESCRIPTOR(text))"
        found = session.sql(f"SELECT * FROM {source}")
        assert found.columns[-5:] == ["sizes", f"m_error{number}", "label", "score", f"n_error{number}"]
        assert {(row[f"m_error{number}"], row[f"n_error{number}"]) for row in found.collect()} == {(None, None)}


def test_failed_rows_of_a_prediction_are_dead_letters(session, spark, tmp_path):
    session.sql(f"CREATE MODEL m {WITH[:-1]}, 'on-error' = 'dead-letter', 'dead-letter' = '{tmp_path}/letters')")
    spark.createDataFrame([(1, "bad"), (2, "abba")], "id int, text string").createOrReplaceTempView("answers")
    found = session.sql("SELECT id, label FROM ML_PREDICT(TABLE answers, MODEL m, DESCRIPTOR(text))")
    assert rows(found) == [(2, "even")]
    assert rows(spark.read.parquet(f"{tmp_path}/letters").select("id", "text")) == [(1, "bad")]


@pytest.mark.connect
def test_constants_have_every_type_that_json_can_tell(session):
    given = {
        "small": "-128", "share": "0.5", "price": "12", "day": '"2026-02-28"', "at": '"2026-01-01T12:00:00Z"',
        "clock": '"2026-01-01 12:00:00"', "point": '{"tags": ["a", null]}', "weights": '{"1": 2}',
        "grid": "[[1], [], null]",
    }  # fmt: skip
    written = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
    session.sql(f"CREATE MODEL m INPUT (t STRING) WITH ('function' = 'constants', {written})")
    expected = """
        SELECT -128Y, 0.5F, 12.00BD, DATE'2026-02-28', TIMESTAMP'2026-01-01 12:00:00Z',
            TIMESTAMP_NTZ'2026-01-01 12:00:00', named_struct('x', null, 'tags', array('a', null)), map(1, 2.0F),
            array(array(1L), array(), null)
    """
    found = session.sql(f"SELECT {', '.join(given)} FROM ML_PREDICT(TABLE texts, MODEL m, DESCRIPTOR(text))")
    assert {str(row) for row in map(tuple, found.collect())} == {str(tuple(session.sql(expected).first()))}
    nothing = ", ".join(f"'{name}' = 'null'" for name in given)
    session.sql(f"CREATE OR REPLACE MODEL m INPUT (t STRING) WITH ('function' = 'constants', {nothing})")
    found = session.sql(f"SELECT {', '.join(given)} FROM ML_PREDICT(TABLE texts, MODEL m, DESCRIPTOR(text))")
    assert set(found.collect()) == {(None,) * len(given)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("small", "128"), ("small", "1.5"), ("small", "true"), ("share", '"1"'), ("share", "true"),
        ("price", "1.005"), ("price", "1e10"), ("price", "true"), ("day", "20260228"), ("day", '"2026-02-30"'),
        ("at", '"2026-01-01T12:00:00"'), ("at", "5"), ("clock", '"2026-01-01T12:00:00Z"'), ("point", "[1, []]"),
        ("point", '{"y": 1}'), ("point", '{"tags": [1]}'), ("weights", '[["1", 2]]'), ("weights", '{"a": 2}'),
        ("grid", "[1]"), ("grid", "{}"), ("grid", "[[1]"),
    ],
)  # fmt: skip
def test_a_constant_that_is_not_of_the_type_of_its_parameter_is_refused(session, name, value):
    with pytest.raises(PlanError, match=f"parameter '{name}' has type .*, and its value is not JSON of this type"):
        session.sql(f"CREATE MODEL m WITH ('function' = 'constants', '{name}' = '{value}')")


def test_a_parameter_of_several_types_may_be_a_constant(session):
    session.sql("CREATE MODEL m INPUT (t STRING) OUTPUT (j STRING) WITH ('function' = 'joined', 'more' = '1')")
    found = session.sql("SELECT j FROM ML_PREDICT(TABLE texts, MODEL m, DESCRIPTOR(text)) WHERE id = 1")
    assert rows(found) == [("abba1",)]


@pytest.mark.connect
def test_models_are_shown_described_replaced_and_dropped(session):
    session.sql(f"CREATE MODEL m INPUT (t STRING) COMMENT 'even or odd' {WITH}")
    session.sql("CREATE MODEL IF NOT EXISTS m WITH ('function' = 'letters')")
    assert rows(session.sql("SHOW MODELS")) == [("m", "judge", "even or odd")]
    described = dict(rows(session.sql("DESCRIBE MODEL m")))
    assert described["input"] == "t string" and described["output"] == "label, score"
    assert described["labels"] == "['even', 'odd']" and described["function"].startswith("judge(text string")
    session.sql("CREATE OR REPLACE MODEL M WITH ('function' = 'letters')")
    assert rows(session.sql("SHOW MODELS")) == [("M", "letters", "")]
    session.sql("DROP MODEL m")
    session.sql("DROP MODEL IF EXISTS m")
    assert rows(session.sql("SHOW MODELS")) == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE MODEL known WITH ('function' = 'letters')", "there is a model 'known' already; CREATE OR REPLACE"),
        ("CREATE MODEL m WITH ('labels' = '[]')", "WITH lacks 'function', the name of a scalar function"),
        ("CREATE MODEL m WITH ('function' = 'longest')", "longest@1 is a function of kind aggregate"),
        ("CREATE MODEL m INPUT (t INT) WITH ('function' = 'letters')", "parameter 'text': expected string, found int"),
        ("CREATE MODEL m INPUT (a STRING, b STRING) WITH ('function' = 'letters')", r"INPUT has 2 columns, .* takes 1"),
        ("CREATE MODEL m OUTPUT (v STRING) WITH ('function' = 'letters')", r"OUTPUT is \(v string\), but letters"),
        ("CREATE MODEL m INPUT (t STRING) WITH ('function' = 'judge', 'shift' = '1')", "'labels' precedes 'shift'"),
        ("CREATE MODEL m WITH ('function' = 'judge', 'labels' = '[1]')", "'labels' has type .* not JSON of this type"),
        ("CREATE MODEL m WITH ('function' = 'letters', 'timeout' = 'soon')", "timeout"),
        (
            "CREATE MODEL m INPUT (t STRIN) WITH ('function' = 'letters')",
            "line 1, column 22: INPUT .* Unsupported data",
        ),
        ("CREATE MODEL m\nINPUT t WITH ('function' = 'letters')", r"line 2, column 7: \( is expected"),
        ("CREATE MODEL m INPUT (t STRING", "the end of INPUT is expected at the end"),
        ("CREATE MODEL m", r"WITH \('function' = 'name of a function', ...\) is expected"),
        ("CREATE MODEL a.m WITH ('function' = 'letters')", "line 1, column 14: a model has no catalog or database"),
        ("CREATE MODEL m WITH ('function' = 'letters', 'function' = 'judge')", "'function' is given twice"),
        (
            "CREATE MODEL m WITH ('function' = 'letters') AS x",
            "line 1, column 46: the end of the statement is expected",
        ),
        ("DROP MODEL m", "there is no model 'm'; DROP MODEL IF EXISTS"),
        ("ALTER MODEL m SET ('timeout' = '5 s')", "there is no model 'm'"),
        ("ALTER MODEL letters SET ('timeout' = '5 s')", "'letters' is a function of the server, not a model"),
        ("ALTER MODEL known SET ('time-out' = '5 s')", "model 'known': 'time-out' is neither a parameter"),
        ("ALTER MODEL known RESET ('timeout')", "model 'known' has no 'timeout' to reset; it has nothing"),
        ("ALTER MODEL known ADD x", r"line 1, column 19: RENAME TO, SET \('key' = 'value', ...\) or RESET"),
        ("SHOW CREATE MODEL m", "there is no model 'm'"),
        ("DESCRIBE MODEL m", "there is no model 'm': this session has known; as a function, no function 'm'"),
    ],
)
def test_a_statement_that_cannot_be_run_is_refused(session, statement, message):
    session.sql("CREATE MODEL known WITH ('function' = 'letters')")
    with pytest.raises((PlanError, ValueError), match=message):
        session.sql(statement)
    assert rows(session.sql("SHOW MODELS")) == [("known", "letters", "")]


def test_the_value_of_an_unknown_option_is_not_shown(session):
    with pytest.raises(PlanError, match=r"'api-key' is neither a parameter .* nor a call option") as error:
        session.sql("CREATE MODEL m WITH ('function' = 'letters', 'api-key' = 'sk-123')")
    assert "sk-123" not in str(error.value)


def test_a_model_of_an_unknown_function_is_refused(session):
    with pytest.raises(UnknownFunction, match="letters"):
        session.sql("CREATE MODEL m WITH ('function' = 'leters')")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("TABLE texts, MODEL nope, DESCRIPTOR(text)", "there is no model 'nope'"),
        (
            "TABLE texts, MODEL longest, DESCRIPTOR(text)",
            "longest@1 is a function of kind aggregate; a model is a scalar function",
        ),
        ("TABLE texts, MODEL letters, DESCRIPTOR(txt)", "the table has no column 'txt'; it has id, text"),
        ("TABLE texts, MODEL letters, DESCRIPTOR(id)", "parameter 'text': expected string, found int"),
        ("TABLE texts, MODEL letters, DESCRIPTOR(text, id)", "takes at most 1 columns, DESCRIPTOR has 2"),
        ("TABLE texts, MODEL letters", "ML_PREDICT lacks the argument ARGS; it takes INPUT, MODEL, ARGS"),
        ("TABLE texts, 'letters', DESCRIPTOR(text)", "MODEL is the word MODEL and the name of a model"),
        ("texts, MODEL letters, DESCRIPTOR(text)", "INPUT is TABLE name"),
        ("TABLE texts, MODEL letters, text", "ARGS is DESCRIPTOR"),
        (
            "TABLE texts, MODEL letters, DESCRIPTOR(text), MAP['asynch', 'true']",
            "CONFIG has no option 'asynch'; there are async, .*max-concurrent-operations, .*timeout",
        ),
        ("TABLE texts, MODEL letters, DESCRIPTOR(text), MAP['timeout', 'soon']", "'timeout': 'soon' is not a duration"),
        ("TABLE texts, MODEL letters, DESCRIPTOR(text), MAP['async', 'maybe']", "'async' is 'maybe', not 'true' or"),
        ("TABLE texts, MODEL letters, DESCRIPTOR(text), 'async'", "CONFIG is a map of texts"),
    ],
)
def test_a_prediction_that_cannot_be_planned_is_refused_with_its_place(session, call, message):
    with pytest.raises(PlanError, match=f"line 2, column 6: .*{message}"):
        session.sql(f"SELECT * FROM\n     ML_PREDICT({call})")


NEAREST = "VECTOR_SEARCH(TABLE vectors, DESCRIPTOR(letters), q.letters, 2)"


@pytest.mark.connect
@pytest.mark.parametrize(
    "joined",
    [
        f", LATERAL TABLE({NEAREST}) AS s",
        f", LATERAL {NEAREST} AS s",
        f"JOIN LATERAL TABLE({NEAREST}) AS s ON true",
        ", LATERAL VECTOR_SEARCH(TABLE vectors, q.letters, DESCRIPTOR(letters), 1 + 1, MAP['async', 'true']) s",
        ", LATERAL VECTOR_SEARCH(TOP_K => 2, COLUMN_TO_QUERY => q.letters, SEARCH_TABLE => TABLE vectors, "
        "COLUMN_TO_SEARCH => DESCRIPTOR(`LETTERS`)) s",
    ],
)
def test_the_most_similar_rows_are_joined(session, joined):
    query = f"""
        WITH vectors AS (SELECT * FROM ML_PREDICT(TABLE docs, MODEL letters, DESCRIPTOR(body)))
        SELECT q.id, s.doc, s.body, round(s.score, 3)
        FROM ML_PREDICT(TABLE texts, MODEL letters, DESCRIPTOR(text)) AS q {joined}
    """
    expected = [(1, 1, "aabb", 1.0), (1, 3, "abc", 0.816), (2, 1, "aabb", 0.816), (2, 3, "abc", 1.0)]
    assert rows(session.sql(query)) == expected


@pytest.mark.connect
def test_a_left_join_keeps_rows_without_a_vector(session, spark):
    spark.createDataFrame([([1.0, 0.0], 5), (None, 6)], "v array<double>, score int").createOrReplaceTempView("answers")
    found = session.sql("""
        SELECT q.n, s.score, score0 FROM VALUES (1, array(2.0D, 0D)), (2, null) AS q(n, v)
        LEFT JOIN LATERAL VECTOR_SEARCH(TABLE answers, DESCRIPTOR(v), q.v, 3) AS s ON true
    """)
    assert rows(found) == [(1, 5, 1.0), (2, None, None)]


@pytest.mark.connect
def test_columns_of_every_kind_come_back_as_they_were(session, spark):
    table = """
        SELECT array(1.0D) v, timestamp'2020-01-01 10:00:00' t,
          timestamp_ntz'2020-01-01 10:00:00' z, date'1700-01-01' d,
          map('a', 1) m, named_struct('t', timestamp'1883-01-01', 'n', null) s, 1.5BD c, X'00' b, array(array(1)) l
    """
    spark.sql(table).createOrReplaceTempView("answers")
    found = session.sql("SELECT * FROM VECTOR_SEARCH(TABLE answers, DESCRIPTOR(v), array(1.0D), 1)").drop("score")
    assert found.schema.simpleString() == spark.table("answers").schema.simpleString()
    assert found.collect() == spark.table("answers").collect()


@pytest.mark.connect
def test_every_nearest_row_of_a_changed_table_is_found(session, spark):
    query = "SELECT n FROM VECTOR_SEARCH(TABLE answers, DESCRIPTOR(v), array(1.0D), 9)"
    spark.createDataFrame([(1, [1.0])], "n int, v array<double>").createOrReplaceTempView("answers")
    first = session.sql(query)
    spark.createDataFrame([(2, [1.0])], "n int, v array<double>").createOrReplaceTempView("answers")
    assert (rows(first), rows(session.sql(query))) == ([(1,)], [(2,)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("TABLE docs, DESCRIPTOR(body), q.v, 2", "column 'body' is string; an array of numbers is expected"),
        ("TABLE docs, DESCRIPTOR(vector), q.v, 2", "SEARCH_TABLE has no column 'vector'; it has doc, body"),
        ("TABLE (SELECT array(1, null) v), DESCRIPTOR(v), q.v, 2", "the searched table has a vector with a null in it"),
        ("TABLE (SELECT explode(array(array(1), array(1, 2))) v), DESCRIPTOR(v), q.v, 2", "of 1 and of 2 numbers"),
        ("TABLE docs, DESCRIPTOR(doc, body), q.v, 2", r"found DESCRIPTOR\(doc, body\), which has 2"),
        ("docs, DESCRIPTOR(doc), q.v, 2", "SEARCH_TABLE is TABLE name"),
        ("TABLE docs, DESCRIPTOR(doc), q.v, 0", "TOP_K is a positive number, not 0"),
        ("TABLE docs, DESCRIPTOR(doc), q.v, q.n", "a scalar argument must be a constant, not q.n"),
        ("TABLE docs, DESCRIPTOR(doc), q.v", "VECTOR_SEARCH lacks the argument TOP_K"),
        ("TABLE (SELECT array(1) v, 1 d, 2 d), DESCRIPTOR(v), q.v, 2", "SEARCH_TABLE has several columns 'd'"),
        ("TABLE (SELECT array(1) v, INTERVAL '1' YEAR y), DESCRIPTOR(v), q.v, 2", "a column that cannot be sent"),
        ("TABLE (SELECT array(double('NaN')) v), DESCRIPTOR(v), q.v, 2", "has a vector with NaN or an infinite number"),
    ],
)
def test_a_search_that_cannot_be_planned_is_refused_with_its_place(session, call, message):
    with pytest.raises(PlanError, match=f"line 2, column 9: .*{message}"):
        session.sql(f"SELECT * FROM VALUES (1, array(1.0)) AS q(n, v), \nLATERAL VECTOR_SEARCH({call})")


@pytest.mark.connect
def test_vectors_of_another_length_are_named_when_the_query_runs(session):
    query = "SELECT * FROM VECTOR_SEARCH(TABLE (SELECT array(1, 2) v), DESCRIPTOR(v), array(1), 1)"
    with pytest.raises(Exception, match=r"a vector of 1 numbers cannot be compared with .* table, which have 2"):
        session.sql(query).collect()


def test_a_table_that_is_too_large_is_refused(session, monkeypatch):
    monkeypatch.setattr("spark_client.models.vector_search.MOST_BYTES", 10)
    with pytest.raises(PlanError, match="at most 0 MB are searched in Spark: select fewer columns, or call a function"):
        session.sql("SELECT * FROM VECTOR_SEARCH(TABLE (SELECT array(1, 2) v), DESCRIPTOR(v), array(1), 1)")


def test_a_stream_is_predicted_and_searched_from_and_keeps_its_watermark(session, spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "0.csv").write_text("1,abba,2024-01-01T00:00:01\n2,cab,2024-01-01T00:00:02\n1,c,2024-01-01T00:01:00\n")
    source = spark.readStream.schema("id int, text string, at timestamp").csv(str(folder))
    source.withWatermark("at", "1 second").createOrReplaceTempView("texts")
    frame = session.sql("""
        WITH vectors AS (SELECT * FROM ML_PREDICT(TABLE docs, MODEL letters, DESCRIPTOR(body)))
        SELECT s.doc, count(*) FROM ML_PREDICT(TABLE texts, MODEL letters, DESCRIPTOR(text)) AS q,
            LATERAL TABLE(VECTOR_SEARCH(TABLE vectors, DESCRIPTOR(letters), q.letters, 1)) AS s
        GROUP BY window(q.at, '10 seconds'), s.doc
    """)
    writer = frame.writeStream.outputMode("append").option("checkpointLocation", str(tmp_path / "checkpoint"))
    stream = writer.format("memory").queryName("nearest").trigger(availableNow=True).start()
    stream.awaitTermination(100)
    assert stream.exception() is None
    assert rows(spark.table("nearest")) == [(1, 1), (3, 1)]
    with pytest.raises(PlanError, match="SEARCH_TABLE is a stream"):
        session.sql("SELECT * FROM VECTOR_SEARCH(TABLE texts, DESCRIPTOR(id), array(1), 1)")


@pytest.mark.parametrize(
    "table",
    [
        "(SELECT * FROM TUMBLE(TABLE times, DESCRIPTOR(at), INTERVAL '2' MINUTES))",
        "TUMBLE(TABLE times, DESCRIPTOR(at), INTERVAL '2' MINUTES)",
        "ML_PREDICT(TABLE times, MODEL letters, DESCRIPTOR(text))",
        "{frame}",
    ],
)
def test_the_table_of_a_prediction_is_any_rows(session, spark, table):
    times = spark.sql("SELECT *, timestamp'2020-01-01' + make_dt_interval(0, 0, id) AS at FROM texts")
    times.createOrReplaceTempView("times")
    try:
        query = f"SELECT id FROM ML_PREDICT(TABLE {table}, MODEL letters, DESCRIPTOR(text)) WHERE id > :low"
        assert rows(session.sql(query, args={"low": 1}, frame=times)) == [(2,), (3,)]
    finally:
        spark.catalog.dropTempView("times")


def test_a_prediction_is_a_view_a_table_and_inserted(session, spark):
    query = "SELECT id, letters FROM ML_PREDICT(TABLE texts, MODEL letters, DESCRIPTOR(text))"
    session.sql(f"CREATE TEMPORARY VIEW answers AS {query}")
    session.sql(f"CREATE TABLE vectors USING parquet AS {query}")
    try:
        session.sql(f"INSERT INTO vectors {query}")
        found = session.sql("""
            SELECT id, (SELECT max(s.score) FROM VECTOR_SEARCH(TABLE vectors, DESCRIPTOR(letters), q.letters, 1) AS s)
            FROM answers AS q
        """)
        assert rows(found) == [(1, pytest.approx(1)), (2, pytest.approx(1)), (3, None)]
        assert spark.table("vectors").count() == 6
    finally:
        spark.sql("DROP TABLE vectors")


def test_explain_tells_of_models_and_does_not_run_their_statements(session):
    told = str(session.explain("SELECT * FROM ML_PREDICT(TABLE texts, MODEL letters, DESCRIPTOR(text))"))
    assert "ML_PREDICT with letters: 1 call of letters@1 per row" in told
    searched = "SELECT * FROM VECTOR_SEARCH(TABLE (SELECT array(1) v), DESCRIPTOR(v), array(1), 1)"
    assert "VECTOR_SEARCH: 1 rows, read now, are compared in Spark's workers" in str(session.explain(searched))
    session.sql("CREATE MODEL m WITH ('function' = 'letters')")
    with pytest.raises(PlanError, match="a statement about models has no plan"):
        session.explain("DROP MODEL m")
    assert rows(session.sql("SHOW MODELS")) == [("m", "letters", "")]


@pytest.mark.parametrize(
    "query",
    ["SELECT model, input FROM (SELECT 1 AS model, 2 AS input)", "SELECT f.model FROM (SELECT struct(1 AS model) f)"],
)
def test_the_words_of_models_remain_names_elsewhere(session, query):
    assert session.sql(query).collect()[0][0] == 1
