"""Which plan an aggregate takes, and that its rows do not depend on it."""

import functools
import itertools

import pytest
from pyspark.sql import functions as F

from spark_client import PlanError
from spark_client.base.explained_plans import cost_plan
from spark_client.planning.aggregate import sizes
from tests.spark_client.executor.aggregate.world import ALL
from udf_server.aggregate.declaration import declare_aggregate

PLANS = ("auto", "one-task", "sorted", "partial")


@pytest.fixture
def functions(remote):
    return remote(*map(declare_aggregate, ALL))


def rows(frame):
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def texts(frame):
    """The rows as text, in which NaN equals NaN."""
    return list(map(repr, rows(frame)))


def planned(functions, frame):
    """The plan of the only aggregate in a frame, and why."""
    (line,) = [each for each in str(functions.explain(frame)).splitlines() if "on the server, by plan" in each]
    return line.partition("by plan ")[2]


@pytest.mark.connect
@pytest.mark.parametrize("few", [True, False])
def test_rows_do_not_depend_on_the_plan(functions, spark, few):
    frame = spark.range(0, 500, 1, 3).selectExpr(
        "id % 7 AS k", "id % 100 AS v", "IF(id % 5 = 0, double('NaN'), -0.0D) AS x"
    )
    frame = frame if few else frame.unionAll(frame.where("v < 0")).selectExpr("*", "explode(array(1)) AS one")
    found = []
    for plan in PLANS:
        total, where, count = (functions.function(n, aggregate_plan=plan) for n in ("total", "total", "rows"))
        calls = [total("v").alias("t"), where("v").filter(F.col("v") > 90).alias("w")]
        failed = functions.function("total", aggregate_plan=plan, on_error="column")
        found.append([
            rows(functions.group_by(frame, "k").agg(*calls)),
            texts(functions.group_by(frame, "x", (F.col("k") % 2).alias("odd")).agg(*calls)),
            rows(functions.group_by(frame).agg(*calls)),
            rows(functions.group_by(frame.where("v < 0")).agg(*calls)),
            rows(functions.group_by(frame.where("v < 0"), "k").agg(*calls)),
            rows(functions.group_by(frame, "k").agg(failed(F.expr("IF(k = 3, -13L, v)")).alias("f"), count())),
        ])  # fmt: skip
    for plan, other in zip(PLANS[1:], found[1:], strict=True):
        for number, each in enumerate(other):
            assert each == found[0][number], (plan, number)
    assert found[0][0] == rows(
        frame.groupBy("k").agg(
            F.struct(F.sum("v"), F.count("v")),
            F.expr("struct(coalesce(sum(v) FILTER (WHERE v > 90), 0), count(v) FILTER (WHERE v > 90))"),
        )
    )
    assert found[0][3] == [((0, 0), (0, 0))]
    assert len(found[0][5]) == 7


@pytest.mark.connect
def test_order_and_functions_that_do_not_merge_take_one_task_if_rows_are_few(functions, spark):
    frame = spark.range(0, 100, 1, 3).selectExpr("id % 3 AS k", "(id * 37) % 100 AS v")
    for plan in PLANS:
        trail, one = (functions.function(name, aggregate_plan=plan) for name in ("trail", "sum_in_one_place"))
        for keys in (["k"], []):
            grouped = functions.group_by(frame, *keys, order_by=[F.col("v").desc()])
            found = {row[:-2]: row[-2:] for row in rows(grouped.agg(trail("v"), one("v")))}
            expected = frame.groupBy(*keys).agg(F.expr("array_sort(collect_list(v), (a, b) -> int(b - a))")).collect()
            assert found == {
                tuple(row)[:-1]: ("".join(f"{v}," for v in row[-1]), (sum(row[-1]), len(row[-1]))) for row in expected
            }
    assert planned(functions, functions.group_by(frame, "k").agg(functions.function("sum_in_one_place")("v"))) == (
        "one-task: the input has at most 100 rows"
    )


@pytest.mark.parametrize(
    ("query", "plan"),
    [
        ("SELECT id % 2 AS k, total(id) FROM range(9) GROUP BY 1", "one-task: the input has at most 9 rows"),
        ("SELECT total(id) FROM range(9) WHERE id > 9", "one-task: the input has at most 9 rows"),
        ("SELECT k, total(v) FROM VALUES (1, 2L), (1, 3L) AS t(k, v) GROUP BY k",
         "one-task: the input has at most 2 rows"),
        ("SELECT k, total(n) FROM (SELECT id % 3 AS k, count(*) AS n FROM range(9) GROUP BY 1) GROUP BY k",
         "sorted: the input has at most 9 rows"),
        ("SELECT total(a.id) FROM range(20000) a CROSS JOIN range(20000) b", "partial: nothing tells the rows of Join"),
        ("SELECT total(x) FROM (SELECT explode(sequence(1L, 100000000L + id)) AS x FROM range(1))",
         "partial: nothing tells the rows of Generate"),
        ("SELECT total(id) FROM range(300000)", "partial: the input has at most 300,000 rows"),
        ("SELECT total(id), count(*) FROM range(9)", "partial: Spark's own aggregates or DISTINCT need the rows"),
        ("SELECT total(DISTINCT id) FROM range(9)", "partial: Spark's own aggregates or DISTINCT need the rows"),
        ("SELECT id % 2, total(id) FROM range(9) GROUP BY CUBE (1)", "partial: it has grouping sets"),
    ],
)  # fmt: skip
def test_the_plan_follows_the_rows_that_spark_has_counted(functions, query, plan):
    (line,) = [each for each in str(functions.explain(query)).splitlines() if "on the server, by plan" in each]
    assert line.endswith(f"total: an aggregate on the server, by plan {plan}")


def test_bytes_of_files_and_counts_of_a_catalog_tell_no_rows(functions, spark, tmp_path):
    total = functions.function("total")
    equal = spark.range(0, 2_000_000, 1, 1).selectExpr("1L AS k")
    equal.write.parquet(str(tmp_path / "equal"))
    files = spark.read.parquet(str(tmp_path / "equal"))
    found = planned(functions, functions.group_by(files).agg(total("k")))
    assert found == "partial: nothing tells the rows of Relation"
    spark.sql("CREATE TABLE stale USING parquet AS SELECT id FROM range(9)")
    try:
        spark.sql("ANALYZE TABLE stale COMPUTE STATISTICS")
        table = spark.table("stale")
        assert planned(functions, functions.group_by(table).agg(total("id"))).startswith("partial: ")
        cached = table.cache()
        assert cached.count() == 9
        assert planned(functions, functions.group_by(cached).agg(total("id"))) == (
            "partial: a cached table may have the count of a catalog"
        )
        cached.unpersist()
    finally:
        spark.sql("DROP TABLE stale")


def test_a_frame_may_be_cached_after_an_aggregate_over_it_was_planned(functions, spark):
    frame = spark.range(9).selectExpr("id", "uuid() AS other")
    functions.group_by(frame.select("id")).agg(functions.function("total")("id"))
    functions.group_by(frame, "other").agg(functions.function("total")("id"))
    frame.cache()
    try:
        assert frame.collect() == frame.collect()
    finally:
        frame.unpersist()


def test_the_option_overrules_the_size_at_the_call_and_in_the_session(functions, spark):
    key, frame = "spark.remoteudf.bundled-agg.total.aggregate-plan", spark.range(9)
    spark.conf.set(key, "partial")
    try:
        query = functions.group_by(frame).agg(functions.function("total")("id"))
        assert planned(functions, query) == "partial: the option aggregate-plan"
        called = functions.function("total", aggregate_plan="sorted")("id")
        assert planned(functions, functions.group_by(frame).agg(called)) == "sorted: the option aggregate-plan"
    finally:
        spark.conf.unset(key)
    one, other = (functions.function("total", aggregate_plan=plan)("id") for plan in ("sorted", "one-task"))
    with pytest.raises(PlanError, match="its calls ask for one-task and sorted"):
        functions.group_by(frame).agg(one, other)


@pytest.mark.connect
def test_a_source_that_spark_plans_slowly_is_asked_ever_less_often_until_it_is_quick(spark, capsys, monkeypatch):
    monkeypatch.setattr(sizes, "SLOW_SECONDS", 0.05)

    def asked(name, seconds, queries):
        clock = itertools.count(0.0, seconds).__next__
        found = [sizes.bound_of(spark.range(3).toDF(name), clock).rows for _ in range(queries)]
        return [number for number, rows in enumerate(found, 1) if rows == 3]

    assert asked("slow_to_plan", 0.06, 9) == [1, 2, 3, 5, 9]
    assert asked("slow_to_plan", 0.04, 10) == [8, 9, 10], "the 17th is quick"
    assert asked("quick", 0.04, 3) == [1, 2, 3]
    assert capsys.readouterr().out == ""


def test_a_plan_is_read_without_printing_it_or_fixing_it(spark, capsys, monkeypatch):
    frame = spark.range(3).toDF("read")
    assert "rowCount=3" in cost_plan(frame)
    assert capsys.readouterr().out == ""
    frame.cache().explain()
    assert "InMemoryTableScan" in capsys.readouterr().out, "Spark uses a cache that is made after the plan was read"
    frame.unpersist()

    @functools.wraps(type(frame).explain)
    def wrapped(*_, **__):
        raise AssertionError("called")

    monkeypatch.setattr(type(frame), "explain", wrapped)
    assert "rowCount=3" in cost_plan(frame)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(type(frame), "explain", lambda *_, **__: None)
    with pytest.raises(PlanError, match="explain does not print it"):
        cost_plan(frame)


def test_few_rows_in_two_hundred_partitions_under_adaptive_execution(functions, spark):
    before = {key: spark.conf.get(key) for key in ("spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled")}
    for key, value in zip(before, ("200", "true"), strict=True):
        spark.conf.set(key, value)
    try:
        few = spark.range(0, 50, 1, 4).selectExpr("id % 5 AS k", "id AS v")
        for plan in ("auto", "one-task"):
            total = functions.function("total", aggregate_plan=plan)
            found = functions.group_by(few.groupBy("k").agg(F.sum("v").alias("s")), "k").agg(total("s"))
            assert rows(found) == [(k, (k * 10 + 225, 1)) for k in range(5)]
            empty = few.groupBy("k").agg(F.sum("v").alias("s")).where("s < 0")
            assert rows(functions.group_by(empty).agg(total("s"))) == [((0, 0),)]
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
