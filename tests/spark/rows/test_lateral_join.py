"""`lateral_join`: each row with the rows that a function returns for it."""

import random

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError

pytestmark = pytest.mark.connect


@udf.scalar(rows=True, nulls="skip", returns="a int, b string")
async def parts(text: str) -> list[dict] | None:
    if "!" in text:
        raise ValueError("loud")
    return [{"a": at, "b": part or None} for at, part in enumerate(text.split(","))] if text != "none" else None


@udf.scalar
async def length(text: str) -> int:
    return len(text)


@pytest.fixture
def frame(spark):
    rows = [(1, "x,y"), (2, "none"), (3, None), (4, ""), (5, "z!")]
    return spark.createDataFrame(rows, "n int, text string")


def found(frame):
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def test_rows_follow_the_columns_of_the_frame(remote, frame):
    session = remote(parts)
    call = session.function("parts")("text")
    quiet = frame.where("n < 5")
    joined = session.lateral_join(quiet, call)
    assert joined.columns == ["n", "text", "a", "b"]
    assert found(joined) == [(1, "x,y", 0, "x"), (1, "x,y", 1, "y"), (4, "", 0, None)]
    left = session.lateral_join(quiet, call, "left", names=["at", "part"])
    assert left.columns == ["n", "text", "at", "part"]
    assert found(left.select("n", "at")) == [(1, 0), (1, 1), (2, None), (3, None), (4, 0)]


def test_errors_of_rows_follow_the_policy(remote, frame, tmp_path, spark):
    session = remote(parts)
    parts_of = session.function("parts")
    assert found(session.lateral_join(frame, parts_of("text"), on_error="null").select("n")) == [(1,), (1,), (4,)]
    for how, rows in (("inner", [1, 1, 4, 5]), ("left", [1, 1, 2, 3, 4, 5])):
        joined = session.lateral_join(frame, parts_of("text"), how, on_error="column")
        assert joined.columns == ["n", "text", "parts_error", "a", "b"]
        assert found(joined.select("n")) == [(n,) for n in rows]
        failed = joined.where("parts_error IS NOT NULL").select("n", "a", "parts_error.message").collect()
        assert [tuple(row) for row in failed] == [(5, None, "ValueError: loud")]
    letters = f"{tmp_path}/letters"
    kept = session.lateral_join(frame, parts_of("text"), on_error="dead-letter", dead_letter=letters)
    assert found(kept.select("n")) == [(1,), (1,), (4,)]
    assert [row.n for row in session.replay(letters).collect()] == [5]
    with pytest.raises(Exception, match="ValueError: loud"):
        session.lateral_join(frame, parts_of("text")).collect()


def test_arguments_may_be_calls_and_expressions(remote, spark):
    session = remote(parts, length)
    frame = spark.createDataFrame([("ab",)], "text string")
    joined = session.lateral_join(frame, session.function("parts")(F.concat("text", F.lit(",c"))))
    assert [tuple(row) for row in joined.collect()] == [("ab", 0, "ab"), ("ab", 1, "c")]


def test_columns_of_the_frame_may_have_any_names(remote, spark):
    session = remote(parts)
    frame = spark.createDataFrame([(1, 2, "x")], "a int, b int, t string").toDF("a.b", "a.b", "t")
    joined = session.lateral_join(frame, session.function("parts")("t"))
    assert joined.columns == ["a.b", "a.b", "t", "a", "b"]
    assert [tuple(row) for row in joined.collect()] == [(1, 2, "x", 0, "x")]


def test_what_cannot_be_joined_is_refused(remote, frame):
    session = remote(parts, length)
    call = session.function("parts")("text")
    for wrong, message in [
        (lambda: session.lateral_join(frame, session.function("length")("text")), "not length(text string) -> bigint"),
        (lambda: session.lateral_join(frame, F.upper("text")), "the call of a remote function is expected"),
        (lambda: session.lateral_join(frame, call, "right"), "how is 'inner' or 'left', not 'right'"),
        (lambda: session.lateral_join(frame, call, names=["a"]), "names has 1 names, the rows of parts@1 have a, b"),
        (lambda: session.lateral_join(frame, call, names=["N", "b"]), "there would be two columns 'n'"),
        (lambda: session.lateral_join(frame, call, names=["b", "B"]), "there would be two columns 'b'"),
    ]:
        with pytest.raises(PlanError) as caught:
            wrong()
        assert message in str(caught.value)


def test_a_stream_is_joined(remote, spark, tmp_path):
    session = remote(parts)
    spark.createDataFrame([(1, "x,y"), (2, "none")], "n int, text string").write.parquet(f"{tmp_path}/in")
    stream = spark.readStream.schema("n int, text string").parquet(f"{tmp_path}/in")
    joined = session.lateral_join(stream, session.function("parts")("text"), "left")
    query = joined.writeStream.format("memory").queryName("lateral_joined").trigger(availableNow=True).start()
    query.awaitTermination()
    assert found(spark.table("lateral_joined")) == [(1, "x,y", 0, "x"), (1, "x,y", 1, "y"), (2, "none", None, None)]


ROWS = """
    CASE WHEN text IS NOT NULL AND text <> 'none'
    THEN transform(split(text, ','), (part, at) -> named_struct('a', at, 'b', nullif(part, ''))) END"""
CONDITIONS = [
    "TRUE", "r.a > 0", "r.b = t.text", "r.a + 1 > t.n", "r.b IS NULL", "t.n > 1", "r.a > 0 OR t.n < 2",
    "r.b = 'x' AND t.n <> 2 AND r.a < t.n", "t.text LIKE concat('%', r.b)",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_sql_gives_the_rows_of_sparks_own_generators(remote, spark, seed):
    draw = random.Random(seed)
    texts = [None, "", "none", "x", "x,y", "y,,x", ","]
    rows = [(draw.choice([None, 1, 2, 3]), draw.choice(texts)) for _ in range(draw.randint(0, 12))]
    spark.createDataFrame(rows, "n int, text string").createOrReplaceTempView("drawn")
    session = remote(parts)
    for _ in range(4):
        join = draw.choice(["JOIN", "LEFT JOIN", "INNER JOIN", "LEFT OUTER JOIN"])
        where = draw.choice(["", "WHERE r.a IS NULL OR r.a < 2", "WHERE t.n > 1"])
        text = f"SELECT t.*, r.* FROM drawn AS t {join} LATERAL {{}} AS r(a, b) ON {draw.choice(CONDITIONS)} {where}"
        ours = session.sql(text.format(draw.choice(["TABLE(parts(t.text))", "parts(text)"])))
        sparks = spark.sql(text.format(f"inline({ROWS})"))
        assert ours.columns == sparks.columns
        assert found(ours) == found(sparks), (seed, rows, text)


@udf.scalar(nulls="skip", returns="struct<id:int,name:string>")
async def person(id: int, minimum: int = 0) -> dict | None:
    return {"id": id % 5, "name": f"p{id}"} if minimum <= id < 7 else None


@pytest.mark.parametrize("seed", range(4))
def test_a_lookup_join_gives_the_rows_of_a_join_with_a_table(remote, spark, seed):
    draw = random.Random(seed)
    rows = [(draw.choice([None, *range(9)]), draw.choice([None, "p1", "p2", "p6"])) for _ in range(draw.randint(0, 15))]
    spark.createDataFrame(rows, "k bigint, name string").createOrReplaceTempView("drawn")
    spark.range(7).selectExpr("id", "concat('p', id) AS name").where("id < 5").createOrReplaceTempView("people")
    session = remote(person)
    others = ["", " AND c.name = t.name", " AND c.id > 2", " AND t.k > 2", " AND c.id + 1 < t.k + length(c.name)"]
    for _ in range(4):
        join = f"{draw.choice(['JOIN', 'LEFT JOIN'])} {{}} AS c ON {draw.choice(['t.k = c.id', 'c.id = t.k'])}"
        text = f"SELECT t.*, c.* FROM drawn AS t {join}{draw.choice(others)}"
        ours = session.sql(text.format("person FOR SYSTEM_TIME AS OF PROCTIME()"))
        sparks = spark.sql(text.format("people"))
        assert ours.columns == sparks.columns
        assert found(ours) == found(sparks), (seed, rows, text)
