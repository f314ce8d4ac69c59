"""Remote aggregates over windows of rows, against Spark's own window functions."""

import datetime
import random
from datetime import timedelta

import pytest
from pyspark.errors import PythonException
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError, Window, desc
from tests.properties import few_quickly
from tests.spark_client.executor.aggregate.world import ALL
from udf_server.aggregate.declaration import declare_aggregate

U, UF = Window.unboundedPreceding, Window.unboundedFollowing


@pytest.fixture
def functions(remote):
    return remote(*map(declare_aggregate, ALL))


@pytest.fixture(scope="module")
def frame(spark):
    """Rows with ties, nulls and gaps in the order column; nulls among the keys and the values."""
    draw = random.Random(7)
    rows = [
        (i, draw.choice([1, 2, None]), draw.choice([*range(9), None]), draw.randrange(9)) for i in range(60)
    ]  # fmt: skip
    frame = spark.createDataFrame(rows, "id int, k int, t int, v bigint")
    start = F.lit(datetime.datetime(2024, 3, 10)).cast("timestamp")
    return frame.select(
        "*",
        F.date_add(F.lit("2024-02-27").cast("date"), F.col("t")).alias("day"),
        (start + F.make_dt_interval(mins=F.col("t") * 10)).alias("at"),
        (F.col("t") / 4).cast("decimal(6,2)").alias("price"),
        F.element_at(F.array(*map(F.lit, (float("nan"), -0.0, 0.0, 1.5, 2.5, 4.0))), F.col("t") % 6 + 1).alias("f"),
    ).cache()


def ours(functions, frame, calls):
    """Returns the sum of each call by row; a frame without rows has 0, while Spark's sum is null."""
    found = functions.with_columns(frame, calls).collect()
    return {name: {row.id: row[name].sum for row in found} for name in calls}


def theirs(frame, windows):
    found = frame.select("id", *(F.coalesce(F.sum("v").over(w), F.lit(0)).alias(name) for name, w in windows.items()))
    rows = found.collect()
    return {name: {row.id: row[name] for row in rows} for name in windows}


ROWS = [(U, 0), (-2, 0), (-1, 2), (1, 3), (-5, -2), (U, UF), (0, UF), (U, 2), (-1, UF)]
RANGES = [(U, 0), (-2, 0), (-2, 3), (0, 0), (0, UF), (U, UF), (1, 4), (U, -1), (-3, UF)]


@pytest.mark.parametrize("size", [7, 1_000_000])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", ["rows", "range"])
def test_frames_are_sparks(functions, frame, kind, descending, size):
    """Tests numbered frames with a function that retracts rows and with one whose frames are recomputed."""
    total = functions.function("total", size=size)
    order = [F.col("t").desc() if descending else "t"] + (["id"] if kind == "rows" else [])
    our_order = [desc("t") if descending else "t"] + (["id"] if kind == "rows" else [])
    between = "rowsBetween" if kind == "rows" else "rangeBetween"
    our_base, their_base = Window.partitionBy("k").orderBy(*our_order), SparkWindow.partitionBy("k").orderBy(*order)
    bounds = ROWS if kind == "rows" else RANGES
    calls = {f"w{i}": total("v").over(getattr(our_base, between)(*each)) for i, each in enumerate(bounds)}
    windows = {f"w{i}": getattr(their_base, between)(*each) for i, each in enumerate(bounds)}
    assert ours(functions, frame, calls) == theirs(frame, windows)


@pytest.mark.connect
def test_ranges_of_days_times_decimals_and_floats_are_sparks(functions, frame):
    total = functions.function("total")
    windows = {
        "days": ("day", -2, 1, "INTERVAL '2' DAY", "INTERVAL '1' DAY"),
        "text": ("at", "-20 minutes", "10 minutes", "INTERVAL '20' MINUTE", "INTERVAL '10' MINUTE"),
        "delta": ("at", timedelta(minutes=-30), timedelta(0), "INTERVAL '30' MINUTE", "INTERVAL '0' MINUTE"),
        "decimal": ("price", -0.25, 0.5, "0.25BD", "0.5BD"),
        "float": ("f", -1.5, 1.0, "1.5D", "1.0D"),
    }
    calls = {
        name: total("v").over(Window.partitionBy("k").orderBy(by).rangeBetween(start, end))
        for name, (by, start, end, _, _) in windows.items()
    }
    sums = [
        f"sum(v) OVER (PARTITION BY k ORDER BY {by} RANGE BETWEEN {start} PRECEDING AND {end} FOLLOWING) AS {name}"
        for name, (by, _, _, start, end) in windows.items()
    ]
    expected = frame.selectExpr("id", *sums).collect()
    found = ours(functions, frame, calls)
    for name in windows:
        assert found[name] == {row.id: row[name] or 0 for row in expected}, name


CHANGES = {
    "Europe/Berlin": ["2026-03-28 20:00", "2026-10-24 20:00"],
    "Europe/Dublin": [
        "2026-03-28 20:00",
        "2026-10-24 20:00",
    ],  # its daylight saving is negative: winter is the exception
    "Australia/Lord_Howe": ["2026-04-04 20:00", "2026-10-03 20:00"],  # by half an hour
    "America/Sao_Paulo": ["2018-11-03 20:00", "2018-02-17 20:00"],  # at midnight
    "+05:30": ["2026-03-28 20:00"],
}
"""Zones, and times before their clocks change."""
DAYS = [
    ("-1 day", 0), (0, "1 day"), (timedelta(hours=-36), timedelta(hours=-24)), ("-2 days", "1 day"), ("-1 day", U),
    ("-1 month", 0), (U, "-1 month"), ("1 month", "12 months"), ("-23 hours", "23 hours"),
]  # fmt: skip
"""Bounds of frames; U is unbounded on its side."""


def interval(bound, side):
    if bound in (0, U):
        return "CURRENT ROW" if bound == 0 else f"UNBOUNDED {side}"
    if isinstance(bound, timedelta):
        bound = f"{bound.total_seconds() / 3600:g} hours"
    word = "PRECEDING" if bound.startswith("-") else "FOLLOWING"
    return f"INTERVAL {bound.strip('-')} {word}"


@pytest.mark.parametrize(
    ("type_", "zone"),
    few_quickly(
        2,
        [
            ("timestamp", "Europe/Berlin"),
            ("date", "Europe/Berlin"),
            ("timestamp_ntz", "Europe/Berlin"),
            *(("timestamp", zone) for zone in CHANGES if zone != "Europe/Berlin"),
        ],
    ),
)
def test_days_and_months_of_ranges_are_those_of_the_sessions_calendar(functions, spark, type_, zone):
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        starts = ", ".join(f"timestamp '{start}'" for start in CHANGES[zone])
        frame = spark.sql(f"SELECT explode(array({starts})) AS start").selectExpr(
            # The rows are ten minutes apart for two nights, and again a month later.
            "explode(flatten(transform(array(0, 1, 31), d -> sequence(start + make_dt_interval(d), "
            "start + make_dt_interval(d, 8), INTERVAL 17 MINUTES)))) AS at"
        )
        frame = frame.selectExpr(f"cast(at AS {type_}) AS at").union(spark.sql(f"SELECT cast(NULL AS {type_})"))
        frame = frame.selectExpr("row_number() OVER (ORDER BY at) AS id", "at")
        frame = frame.selectExpr("id", "at", "id % 7 AS v", "id % 2 AS k").cache()
        frames = [each for each in DAYS if type_ != "date" or "month" in f"{each}"]
        calls, texts = {}, []
        for number, (start, end) in enumerate(frames):
            for direction in ("", " DESC"):
                name = f"w{number}{direction.strip()}"
                window = Window.partitionBy("k").orderBy(desc("at") if direction else "at")
                bounds = (U if start == U else start), (UF if end == U else end)
                calls[name] = functions.function("total", size=40)("v").over(window.rangeBetween(*bounds))
                texts.append(
                    f"sum(v) OVER (PARTITION BY k ORDER BY at{direction} RANGE BETWEEN {interval(start, 'PRECEDING')} "
                    f"AND {interval(end, 'FOLLOWING')}) AS {name}"
                )
        found, rows = ours(functions, frame, calls), frame.selectExpr("id", *texts).collect()
        for name, text in zip(calls, texts, strict=True):
            assert found[name] == {row.id: row[name] or 0 for row in rows}, text
        frame.unpersist()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(
    ("order", "other", "operators"),
    [("t DESC", "t DESC NULLS LAST", 1), ("t NULLS LAST", "t NULLS LAST", 1), ("t DESC", "t DESC NULLS FIRST", 2)],
)
def test_windows_with_the_same_order_share_an_operator(functions, frame, capsys, order, other, operators):
    windows = [f"total(v) OVER (PARTITION BY k ORDER BY {by})" for by in (order, other)]
    functions.sql(f"SELECT {windows[0]} AS a, {windows[1]} AS b FROM {{frame}}", frame=frame).explain()
    assert capsys.readouterr().out.count("MapInArrow") == operators


def test_rows_are_ordered_by_a_text_with_a_collation(functions, frame):
    text = "(format_string('%s%s', if(id % 2 = 0, 'a', 'A'), t) COLLATE UTF8_LCASE)"
    for direction in ("", " DESC", " DESC NULLS FIRST"):
        window = f"OVER (PARTITION BY k ORDER BY {text}{direction}, id ROWS 1 PRECEDING)"
        found = functions.sql(f"SELECT id, total(v) {window} AS w FROM {{frame}}", frame=frame).collect()
        expected = frame.selectExpr("id", f"sum(v) {window} AS w").collect()
        assert {row.id: row.w.sum for row in found} == {row.id: row.w or 0 for row in expected}


@pytest.mark.parametrize("direction", ["NULLS LAST", "DESC NULLS FIRST"])
def test_nulls_of_ranges_are_first_or_last_as_written(functions, frame, direction):
    bounds = ["1 PRECEDING AND 2 FOLLOWING", "UNBOUNDED PRECEDING AND 1 FOLLOWING"]
    bounds.append("1 FOLLOWING AND UNBOUNDED FOLLOWING")
    days = ["INTERVAL 2 DAYS PRECEDING AND CURRENT ROW", "INTERVAL 1 MONTH PRECEDING AND INTERVAL 0 MONTH PRECEDING"]
    times = [*days, "UNBOUNDED PRECEDING AND INTERVAL '20' MINUTE PRECEDING"]
    frames = {"t": bounds, "price": bounds, "f": bounds, "day": days, "at": times, "age": times[2:]}
    windows = {
        f"{by}_{number}": f"OVER (PARTITION BY k ORDER BY {by} {direction} RANGE BETWEEN {each})"
        for by, every in frames.items()
        for number, each in enumerate(every)
    }
    frame = frame.withColumn("age", F.expr("at - TIMESTAMP '2024-03-10'"))
    calls = ", ".join(f"total(v) {window} AS {name}" for name, window in windows.items())
    found = functions.sql(f"SELECT id, {calls} FROM {{frame}}", frame=frame).collect()
    expected = frame.selectExpr("id", *(f"sum(v) {window} AS {name}" for name, window in windows.items())).collect()
    for name, window in windows.items():
        assert {row.id: row[name].sum for row in found} == {row.id: row[name] or 0 for row in expected}, window


def test_floats_from_the_largest_down_begin_with_nan(functions, frame):
    total = functions.function("total")
    found = ours(
        functions, frame, {"w": total("v").over(Window.partitionBy("k").orderBy(desc("f")).rangeBetween(-1, 1))}
    )
    expected = theirs(frame, {"w": SparkWindow.partitionBy("k").orderBy(F.col("f").desc()).rangeBetween(-1, 1)})
    assert found == expected


def test_zeros_of_both_signs_are_one_partition(functions, frame):
    total = functions.function("total")
    found = ours(functions, frame, {"w": total("v").over(Window.partitionBy("f"))})
    assert found == theirs(frame, {"w": SparkWindow.partitionBy("f")})


def test_without_order_or_partition_the_window_is_everything(functions, frame):
    total = functions.function("total")
    calls = {
        "all": total("v").over(Window.partitionBy()),
        "part": total("v").over(Window.partitionBy("k")),
        "some": total("v").filter(F.col("v") > 3).over(Window.partitionBy("k").orderBy("t")),
    }
    found = ours(functions, frame, calls)
    part = SparkWindow.partitionBy("k")
    expected = theirs(frame, {"all": SparkWindow.partitionBy(), "part": part})
    assert (found["all"], found["part"]) == (expected["all"], expected["part"])
    some = frame.select("id", F.sum(F.when(F.col("v") > 3, F.col("v"))).over(part.orderBy("t")).alias("x"))
    assert found["some"] == {row.id: row.x or 0 for row in some.collect()}


def test_a_function_that_cannot_take_rows_back_sees_each_frame_in_order(functions, frame):
    trail, rows = functions.function("trail", size=5), functions.function("rows")
    window = Window.partitionBy("k").orderBy("t", "id").rowsBetween(-2, 1)
    found = functions.select(frame, "id", trail("v").over(window).alias("t"), rows().over(window).alias("n")).collect()
    spark_window = SparkWindow.partitionBy("k").orderBy("t", "id").rowsBetween(-2, 1)
    expected = frame.select("id", F.collect_list("v").over(spark_window).alias("vs")).collect()
    assert {row.id: row.t for row in found} == {row.id: "".join(f"{v}," for v in row.vs) for row in expected}
    assert {row.id: row.n for row in found} == {row.id: len(row.vs) for row in expected}


def test_columns_are_added_replaced_and_selected_as_everywhere(functions, frame):
    total, whole = functions.function("total"), Window.partitionBy("k")
    wide = functions.with_columns(frame, {"v": total("v").over(whole), "n": total("id").over(whole)})
    assert wide.columns == [*frame.columns, "n"]
    assert wide.schema["v"].dataType.simpleString() == "struct<sum:bigint,count:bigint>"
    chosen = functions.select(frame, F.col("id").alias("i"), total("v").over(whole), "*")
    assert chosen.columns == ["i", "total(v)", *frame.columns]
    assert chosen.count() == 60


@udf.scalar(nulls="skip")
async def plus_ten(x: int) -> int:
    return x + 10


def test_scalar_calls_and_windows_in_one_with_columns_see_the_frame_as_it_is(remote, frame):
    session = remote(*map(declare_aggregate, ALL), plus_ten)
    total, plus, whole = session.function("total"), session.function("plus_ten"), Window.partitionBy("k")
    calls = {"n": total("v").over(whole), "k": plus("v"), "p": plus("k"), "v": total("k").over(whole)}
    wide = session.with_columns(frame, calls)
    assert wide.columns == [*frame.columns, "n", "p"]
    own = SparkWindow.partitionBy("k")
    expected = frame.withColumns(
        {"n": F.sum("v").over(own), "k": F.col("v") + 10, "p": F.col("k") + 10, "v": F.sum("k").over(own)}
    )
    shown = ["id", "n", "k", "p", "v"]
    found = wide.withColumns({"n": F.col("n.sum"), "v": F.expr("nullif(v.sum, 0)")}).select(shown).orderBy("id")
    assert found.collect() == expected.select(shown).orderBy("id").collect()
    failing = total.with_options(on_error="column")
    columns = session.with_columns(frame, {"n": failing("v").over(whole), "p": plus("k")}).columns
    assert columns == [*frame.columns, "n", "n_error", "p"]


def test_rows_of_a_partition_that_fails_carry_its_error(functions, frame):
    bad = frame.withColumn("v", F.when(F.col("id") == 3, F.lit(-13)).otherwise(F.col("v")))
    total, whole = functions.function("total"), Window.partitionBy("k").orderBy("id")
    with pytest.raises(PythonException, match=r"function total@1: a segment of the key \(k="):
        functions.with_columns(bad, {"x": total("v").over(whole)}).collect()
    found = functions.with_columns(bad, {"x": total.with_options(on_error="column")("v").over(whole)})
    failed = {row.k for row in bad.where("id = 3").collect()}
    for row in found.collect():
        assert (row.x is None) == (row.x_error is not None) == (row.k in failed)


@pytest.mark.connect
def test_what_a_window_cannot_have_is_refused(functions, frame, spark):
    total = functions.function("total")

    def plan(window):
        functions.with_columns(frame, {"x": total("v").over(window)})

    with pytest.raises(PlanError, match=r"spark_client\.Window"):
        plan(SparkWindow.partitionBy("k"))
    with pytest.raises(PlanError, match=r"offsets that are numbers, and its order is by timestamp"):
        plan(Window.orderBy("at").rangeBetween(-1, 0))
    with pytest.raises(PlanError, match=r"offsets that are durations, and its order is by int"):
        plan(Window.orderBy("t").rangeBetween("-1 minute", 0))
    with pytest.raises(PlanError, match="needs one column to order by, found 2"):
        plan(Window.orderBy("t", "id").rangeBetween(-1, 0))
    with pytest.raises(PlanError, match="is a direction"):
        plan(Window.orderBy(F.col("t").desc()).rangeBetween(-1, 0))
    with pytest.raises(PlanError, match="offsets of two kinds"):
        Window.orderBy("at").rangeBetween("-1 minute", 5)
    with pytest.raises(PlanError, match="offsets of two kinds"):
        Window.orderBy("at").rangeBetween("-1 month", "1 day")
    with pytest.raises(PlanError, match=r"offsets that are durations, and its order is by int"):
        plan(Window.orderBy("t").rangeBetween("-1 month", 0))
    with pytest.raises(PlanError, match=r"offsets that are durations, and its order is by interval day to second"):
        plan(Window.orderBy(F.expr("at - date'2024-03-10'")).rangeBetween("-1 month", 0))
    with pytest.raises(PlanError, match="every frame would be empty"):
        Window.orderBy("t").rowsBetween(2, 1)
    with pytest.raises(PlanError, match="DISTINCT"):
        total("v").distinct().over(Window.partitionBy("k"))
    with pytest.raises(PlanError, match="not a number of rows"):
        Window.orderBy("t").rowsBetween(0.5, 1)
    stream = spark.readStream.format("rate").load()
    with pytest.raises(PlanError, match="OVER is not supported on a stream"):
        functions.with_columns(stream, {"x": total("value").over(Window.partitionBy("value"))})
