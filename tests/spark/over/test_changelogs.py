"""OVER on a changelog: each net row has its value, whatever was retracted."""

import random

import pytest
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F

from spark_client import PlanError, Window
from tests.spark_client.executor.aggregate.world import ALL
from udf_server.aggregate.declaration import declare_aggregate

CHANGES = [
    ("+I", "a", 1),
    ("+I", "a", 2),
    ("-U", "a", 2),
    ("+U", "a", 5),
    ("+I", "b", 7),
    ("-D", "b", 7),
    ("-D", "c", 3),
]
"""Key b loses its row; the row that is taken from key c was never there."""
NET = {("a", 1, 6), ("a", 5, 6)}


@pytest.fixture
def functions(remote):
    return remote(*map(declare_aggregate, ALL))


@pytest.fixture
def changes(spark):
    frame = spark.createDataFrame(CHANGES, "row_kind string, k string, v bigint").coalesce(1)
    frame.createOrReplaceTempView("changes")
    return frame


def values(frame):
    return {(row.k, row.v, row.s.sum) for row in frame.collect()}


@pytest.mark.connect
def test_net_rows_have_the_values_in_sql_and_in_frames(functions, changes):
    total, window = functions.function("total"), Window.partitionBy("k")
    assert values(functions.sql("SELECT k, v, total(v) OVER (PARTITION BY k) AS s FROM changes")) == NET
    assert values(functions.with_columns(changes, {"s": total("v").over(window)})) == NET
    assert values(functions.select(changes, "k", "v", total("v").over(window).alias("s"))) == NET
    # All that is left was added, and says so.
    starred = functions.sql("SELECT *, total(v) OVER (PARTITION BY k) AS s FROM changes")
    assert {row.row_kind for row in starred.collect()} == {"+I"}


def test_a_delta_change_feed_has_net_rows_too(functions, changes):
    kinds = {"+I": "insert", "-U": "update_preimage", "+U": "update_postimage", "-D": "delete"}
    delta = changes.replace(kinds, subset="row_kind").withColumnRenamed("row_kind", "_change_type")
    total = functions.function("total")("v").over(Window.partitionBy("k"))
    assert values(functions.with_columns(delta, {"s": total})) == NET


def test_a_query_that_names_the_column_of_kinds_treats_it_as_data(functions, changes):
    text = "SELECT row_kind, v, total(v) OVER (PARTITION BY k) AS s FROM changes WHERE k = 'a'"
    assert {(row.row_kind, row.s.sum) for row in functions.sql(text).collect()} == {("+I", 10), ("-U", 10), ("+U", 10)}


@pytest.mark.parametrize("seed", range(3))
def test_random_changes_have_the_values_of_the_table_that_they_describe(functions, spark, seed):
    draw = random.Random(seed)
    table, rows = [], []
    for _ in range(80):
        if table and draw.random() < 0.4:
            taken = table.pop(draw.randrange(len(table)))
            rows.append((draw.choice(["-U", "-D"]), *taken))
        else:
            table.append((draw.choice("abc"), draw.choice([None, 1, 2, 3]), draw.randrange(4)))
            rows.append((draw.choice(["+I", "+U"]), *table[-1]))
    changes = spark.createDataFrame(rows, "row_kind string, k string, t int, v bigint").coalesce(2)
    window = Window.partitionBy("k").orderBy("t")
    ours = functions.with_columns(changes, {"s": functions.function("total")("v").over(window)})
    plain = spark.createDataFrame(table, "k string, t int, v bigint")
    theirs = plain.withColumn("s", F.sum("v").over(SparkWindow.partitionBy("k").orderBy("t")))
    key = F.struct("k", "t", "v", "s")
    found = sorted(map(str, ours.withColumn("s", F.col("s.sum")).select(key).collect()))
    assert found == sorted(map(str, theirs.select(key).collect()))


def test_functions_of_rows_keep_each_change(remote, changes):
    """A call per row makes a change of each change, so that the result is the changelog of the results."""
    import udf_server as udf

    @udf.scalar
    def doubled(v: int) -> int:
        return 2 * v

    session = remote(doubled)
    double = session.function("doubled")
    found = session.with_columns(changes, {"d": double("v")}).collect()
    assert sorted((row.row_kind, row.d) for row in found) == sorted((kind, 2 * v) for kind, _, v in CHANGES)
    found = session.sql("SELECT row_kind, d FROM changes, LATERAL (SELECT doubled(v) AS d)").collect()
    assert sorted((row.row_kind, row.d) for row in found) == sorted((kind, 2 * v) for kind, _, v in CHANGES)


def test_vectors_that_were_retracted_are_not_found(remote, spark):
    rows = [("+I", "near", [1.0, 0.0]), ("+I", "far", [0.0, 1.0]), ("-D", "near", [1.0, 0.0])]
    spark.createDataFrame(rows, "row_kind string, k string, v array<double>").createOrReplaceTempView("vectors_changed")
    search = "LATERAL VECTOR_SEARCH(TABLE vectors_changed, DESCRIPTOR(v), q.v, 1) s"
    text = f"SELECT s.k FROM (SELECT array(1D, 0D) AS v) q, {search}"
    assert [row.k for row in remote().sql(text).collect()] == ["far"]


def test_what_would_count_retracted_rows_is_refused(functions, changes):
    with pytest.raises(PlanError, match=r"a window of Spark's own .* counts the retracted rows"):
        functions.sql("SELECT total(v) OVER (PARTITION BY k), row_number() OVER (ORDER BY v) FROM changes")
    with pytest.raises(PlanError, match="a join of changelogs is not a changelog"):
        functions.sql("SELECT total(a.v) OVER (PARTITION BY a.k) FROM changes a JOIN changes b ON a.k = b.k")
    mapped = changes.withColumn("m", F.create_map(F.lit(1), F.lit(2)))
    with pytest.raises(PlanError, match=r"rows with a column 'm' of type map<int,int> cannot be compared"):
        functions.with_columns(mapped, {"s": functions.function("total")("v").over(Window.partitionBy("k"))})


def test_explain_names_the_windows_and_the_changelog(functions, changes):
    said = str(functions.explain("SELECT k, total(v) OVER (PARTITION BY k ORDER BY v) AS s FROM changes"))
    assert said.splitlines()[0] == (
        "1. total(v) OVER (PARTITION BY k ORDER BY v): total on the server, for each row, over the net rows of a "
        "changelog (column 'row_kind')"
    )
    window = Window.partitionBy("k")
    framed = functions.with_columns(changes, {"s": functions.function("total")("v").over(window)})
    assert "total OVER" in str(functions.explain(framed)).splitlines()[0]
