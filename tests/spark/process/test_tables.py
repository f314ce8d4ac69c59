"""Process table functions over bounded DataFrames: `remote.process(...)`."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError
from spark_client.base.changelogs import require_retract
from spark_client.windows import tumble, window_join
from tests.conftest import SESSION_ZONE
from udf_process import FraudRules, OneMatchJoin, SessionAlerts, ToChangelog
from udf_server import ArgumentTrait, StateHint
from udf_server.process.declaration import declare_process

KEYED = Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]
UPSERT = udf.ChangelogMode.of("+I", "+U", "-D", key_only_deletes=True)
START = dt.datetime(2026, 3, 1)


@dataclass
class Sum:
    """The sum of the values so far."""

    total: int = 0
    rows: int = 0


class Running(udf.ProcessTableFunction):
    """Emits the sum up to each row, and the total at the end."""

    returns = "total bigint, rows bigint, last boolean"

    def eval(self, ctx: udf.ProcessContext, sum: Annotated[Sum, StateHint()], rows: KEYED) -> Iterator[tuple]:
        if rows.v == 13:
            raise ValueError("thirteen")
        sum.total += rows.v
        sum.rows += 1
        ctx.register_on_time("end", 2**63 - 1)
        yield sum.total, sum.rows, False

    def on_timer(self, ctx: udf.ProcessContext, sum: Sum) -> Iterator[tuple]:
        yield sum.total, sum.rows, True


class Doubled(udf.ProcessTableFunction):
    """Emits all columns and twice the value."""

    returns = "doubled bigint"

    async def eval(
        self, rows: Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE, ArgumentTrait.PASS_COLUMNS_THROUGH]
    ):
        yield (None if rows.v is None else rows.v * 2,)


class Moment(udf.ProcessTableFunction):
    """Emits a received time in seconds since 1970, and other arguments that could be changed on the way."""

    returns = "seconds double, span array<interval day to second>, ratio double"

    def eval(
        self,
        at: dt.datetime,
        span: Annotated[list[dt.timedelta] | None, "array<interval day to second>"] = None,
        ratio: float = 0.5,
        tiny: Annotated[int, "tinyint"] = 0,
    ) -> Iterator[tuple]:
        yield at.timestamp(), span, ratio


class Order(udf.ProcessTableFunction):
    """Emits the order in which rows arrive."""

    returns = "position int, id bigint"

    def eval(self, seen: udf.ValueView[int], left: KEYED, right: KEYED) -> Iterator[tuple]:
        seen.value = (seen.value or 0) + 1
        yield seen.value, (left or right).id


class Latest(udf.ProcessTableFunction):
    """Emits a value per key as upsert changes; a negative value deletes."""

    returns = "v bigint"
    changelog_mode = udf.ChangelogMode.of("+I", "+U", "-D")

    def eval(self, last: udf.ValueView[int], rows: KEYED) -> Iterator[udf.Row]:
        kind = "-D" if rows.v < 0 else "+I" if last.value is None else "+U"
        last.value = None if rows.v < 0 else rows.v
        yield udf.Row(rows.v, kind=kind)


class LatestByKey(Latest):
    """The same; a delete has the key only."""

    changelog_mode = UPSERT

    def eval(self, last: udf.ValueView[int], rows: KEYED) -> Iterator[udf.Row]:
        for row in super().eval(last, rows):
            yield udf.Row(None, kind="-D") if row.kind is udf.RowKind.DELETE else row


class Kinds(udf.ProcessTableFunction):
    """Emits the changes as they arrive."""

    returns = "kind string, values string"

    def eval(
        self, rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.SUPPORT_UPDATES]
    ) -> Iterator[tuple]:
        yield rows.kind.value, ",".join(map(str, rows))


class Counter(udf.ProcessTableFunction):
    """Emits numbers up to n."""

    returns = "bigint"

    def eval(self, n: int) -> Iterator[int]:
        yield from range(n)


class Given(udf.ProcessTableFunction):
    """Emits its arguments."""

    returns = "counts map<string,bigint>, months bigint, place struct<name:string,tags:map<string,int>>"

    def eval(
        self,
        counts: dict[str, int] | None = None,
        months: int = 0,
        place: Annotated[dict | None, "struct<name:string,tags:map<string,int>>"] = None,
        patience: dt.timedelta | None = None,
    ) -> Iterator[tuple]:
        yield counts, months, place


@pytest.fixture
def functions(remote):
    ours = (
        Given,
        Running,
        Doubled,
        Counter,
        Moment,
        Order,
        Latest,
        Kinds,
        FraudRules,
        OneMatchJoin,
        SessionAlerts,
        ToChangelog,
    )
    return remote(*map(declare_process, ours))


def rows(frame):
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.connect
@pytest.mark.parametrize("size", [7, 10_000])
def test_state_goes_on_from_row_to_row_however_keys_are_cut_into_bundles(functions, spark, size):
    """One key has most of the rows, so its state passes from segment to segment."""
    numbers = spark.range(14, 214, 1, 3).select(
        F.when(F.col("id") % 10 == 0, F.col("id")).alias("k"), F.col("id").alias("v")
    )
    found = functions.process("running", numbers, partition_by="k", order_by=(), options={"size": size})
    assert found.columns == ["k", "total", "rows", "last"]
    at_end = found.where("last").select("k", "total", "rows")
    expected = numbers.groupBy("k").agg(F.sum("v"), F.count("v"))
    assert {tuple(row) for row in at_end.collect()} == {tuple(row) for row in expected.collect()}
    assert found.where("NOT last").count() == 200


def test_rows_of_a_key_come_in_the_order_that_is_asked_for(functions, spark):
    frame = spark.createDataFrame([(START + dt.timedelta(days=day), day) for day in (3, 1, 2)], "ts timestamp, v int")
    keyed = frame.select(F.lit("a").alias("k"), "ts", "v")
    found = functions.process("running", keyed, partition_by="k", order_by="ts").where("NOT last").collect()
    assert [row.total for row in found] == [1, 3, 6]


@pytest.mark.parametrize(
    ("nulls", "order"),
    [("", [5, 4, 8, 1, 7, 2]), (" NULLS FIRST", [5, 4, 8, 1, 7, 2]), (" NULLS LAST", [8, 1, 7, 2, 5, 4])],
)
def test_rows_without_a_time_come_where_the_order_of_their_table_says(functions, spark, nulls, order):
    left, right = (
        spark.sql(f"SELECT 'k' AS k, id, CAST(ts AS timestamp) AS ts FROM VALUES {rows} AS t(id, ts)")
        for rows in (
            "(1L, '2026-01-01 00:00'), (2L, '2026-01-02 00:00'), (4L, NULL), (5L, NULL)",
            "(7L, '2026-01-01 12:00'), (8L, NULL)",
        )
    )
    found = functions.process(
        "order",
        {"left": left, "right": right},
        partition_by="k",
        order_by={"left": ["ts" + nulls, "id DESC"], "right": "ts"},
    )
    assert [row.id for row in found.sort("position").collect()] == order


def test_a_failure_names_the_function_and_the_key(functions, spark):
    frame = spark.range(10, 16).select((F.col("id") % 2).alias("k"), F.col("id").alias("v"))
    with pytest.raises(PythonException, match=r"(?s)running@1: a segment of the key \(k=1\) failed.*thirteen"):
        functions.process("running", frame, partition_by="k").collect()


def test_rows_without_a_key_keep_their_columns(functions, spark):
    frame = spark.createDataFrame([(1, "a"), (None, "b")], "v bigint, s string")
    assert rows(functions.process("doubled", frame).select("s", "doubled")) == [("a", 2), ("b", None)]


def test_text_that_is_passed_through_keeps_its_collation(functions, spark):
    frame = spark.sql("SELECT 1L AS v, 'A' COLLATE UTF8_LCASE AS s, array('a' COLLATE UNICODE_CI) AS l")
    result = functions.process("doubled", frame)
    assert [field.dataType for field in result.schema[:3]] == [field.dataType for field in frame.schema]
    assert result.where("s = 'a' AND array_contains(l, 'A')").count() == 1


def test_a_function_without_tables_is_called_once(functions):
    assert rows(functions.process("counter", n=3)) == [(0,), (1,), (2,)]


def test_an_empty_table_gives_nothing(functions, spark):
    assert (
        functions.process("running", spark.range(0).selectExpr("id AS k", "id AS v"), partition_by="k").collect() == []
    )


@pytest.mark.parametrize(("of_right", "on_time"), [("ts", "ts"), ("at", ["ts", "at"])])
def test_rows_of_two_tables_come_by_their_time(functions, spark, of_right, on_time):
    """The columns that the call names may have different names in the tables."""

    def side(time, *told):
        times = [(key, value, START + dt.timedelta(minutes=minute)) for key, value, minute in told]
        return spark.createDataFrame(times, f"k string, v string, {time} timestamp")

    tables = {
        "left": side("ts", ("a", "l1", 0), ("a", "l2", 300)),
        "right": side(of_right, ("a", "r1", 1), ("b", "r2", 2)),
    }
    found = functions.process("one_match_join", tables, partition_by="k", on_time=on_time)
    assert found.columns == ["k", "k0", "left_value", "right_value", "rowtime"]
    pairs = {(row.left_value, row.right_value) for row in found.collect()}
    assert pairs == {("l1", "r1"), ("l2", None), (None, "r2")}


def test_a_time_that_a_star_hides_is_selected_for_the_call(functions, spark, tmp_path):
    spark.createDataFrame([("a", "l1"), ("a", "l2")], "k string, v string").coalesce(1).write.parquet(f"{tmp_path}/t")
    files = f"SELECT *, _metadata.file_modification_time AS ts FROM parquet.`{tmp_path}/t`"
    both = ", ".join(f"{side} => TABLE ({files}) PARTITION BY k" for side in ("left", "right"))
    found = functions.sql(f"SELECT * FROM one_match_join({both}, on_time => DESCRIPTOR(ts))")
    assert {(row.left_value, row.right_value) for row in found.collect()} == {("l1", "l1"), ("l2", "l2")}
    (time,) = {row.rowtime for row in found.collect()}
    assert time == functions.sql(files).first().ts


@pytest.mark.parametrize(
    ("clause", "left_type", "left_order"),
    [
        ("order_by", "timestamp_ntz", [2, 4, 6]),
        ("on_time", "timestamp_ntz", [2, 4, 6]),
        # The clock skips 02:30, so this is 03:30.
        ("order_by", "timestamp", [4, 2, 6]),
    ],
)
def test_rows_keep_the_order_of_their_times_where_clocks_change(functions, spark, clause, left_type, left_order):
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        times = "(2L, '2026-03-29 02:30:00'), (4L, '2026-03-29 03:10:00'), (6L, '2026-10-25 02:30:00')"
        left, right = (
            spark.sql(f"SELECT 'k' AS k, id + {n} AS id, cast(ts AS {type_}) AS ts FROM VALUES {times} AS t(id, ts)")
            for n, type_ in enumerate((left_type, "timestamp_ntz"))
        )
        found = functions.process("order", {"left": left, "right": right}, partition_by="k", **{clause: "ts"})
        ids = [row.id for row in found.sort("position").collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", SESSION_ZONE)
    assert [each for each in ids if each % 2 == 0] == left_order
    assert [each for each in ids if each % 2] == [3, 5, 7]
    if left_type == "timestamp_ntz":
        assert [each // 2 for each in ids] == [1, 1, 2, 2, 3, 3]


def test_scalar_arguments_arrive_as_they_are_written_or_are_refused(functions, spark):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        (row,) = functions.sql(
            """SELECT * FROM moment(
                 at => TIMESTAMP '2026-01-01 00:00:00', span => array(INTERVAL '1' HOUR), ratio => 0.25)"""
        ).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", SESSION_ZONE)
    assert tuple(row) == (dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC).timestamp(), [dt.timedelta(hours=1)], 0.25)
    with pytest.raises(PlanError, match=r"moment@1, argument 'tiny': expected tinyint, got 1.99: "):
        functions.process("moment", at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), tiny=1.99)
    with pytest.raises(PlanError, match=r"argument 'tiny': expected tinyint, got 300"):
        functions.sql("SELECT * FROM moment(at => TIMESTAMP '2026-01-01 00:00:00', tiny => 300)")


@dataclass
class Visit:
    """Its integer is wider than the column that is passed."""

    name: str
    age: int


class Ages(udf.ProcessTableFunction):
    """Says of which table the row is."""

    returns = "table string, n bigint"

    def eval(
        self,
        total: Annotated[Sum, StateHint()],
        visits: Annotated[Visit, ArgumentTrait.SET_SEMANTIC_TABLE],
        rows: KEYED,
    ) -> Iterator[tuple[str, int]]:
        total.rows += 1
        yield ("visits", visits.age) if visits is not None else ("rows", 100 * total.rows + rows.age)


def test_a_typed_table_and_another_one_meet_by_a_key_of_the_same_column_type(remote, spark):
    tables = {name: spark.sql("SELECT 'Ann' AS name, 25 AS age") for name in ("visits", "rows")}
    found = remote(declare_process(Ages)).process("ages", tables, partition_by="age")
    assert rows(found) == [(25, 25, "rows", 225), (25, 25, "visits", 25)]


class Labelled(udf.ProcessTableFunction):
    """Scalar arguments whose names are also parameters of `remote.process`."""

    returns = "label string"

    def eval(self, name: str, options: str = "o", tables: int = 0) -> Iterator[tuple[str]]:
        yield (f"{name} {options} {tables}",)


def test_scalar_arguments_may_be_named_as_parameters_of_the_call(remote):
    session = remote(declare_process(Labelled))
    assert session.process("labelled", name="n").first().label == "n o 0"
    query = "SELECT label FROM labelled(name => 'n', options => 'p', tables => 2)"
    assert session.sql(query).first().label == "n p 2"


def test_a_column_that_is_named_as_another_one_gets_a_number(functions, spark):
    changes = spark.sql("SELECT 'Bob' AS name, 1 AS v, '+I' AS row_kind")
    whole = functions.process("to_changelog", changes, op=["v"])
    assert whole.columns == ["v", "name", "v0"]
    assert rows(whole) == [("INSERT", "Bob", 1)]
    keyed = functions.process("to_changelog", changes, partition_by="name", op=["name"])
    assert keyed.columns == ["name", "name0", "v"]
    assert rows(keyed) == [("Bob", "INSERT", 1)]


@pytest.mark.connect
@pytest.mark.parametrize(
    ("written", "emitted"),
    [
        ("counts => map()", ({}, 0, None)),
        ("place => named_struct('name', 'x', 'tags', map())", (None, 0, {"name": "x", "tags": {}})),
        ("months => INTERVAL '1' YEAR", (None, 12, None)),
        ("months => INTERVAL '-1-3' YEAR TO MONTH", (None, -15, None)),
        ("months => CAST(NULL AS INTERVAL MONTH)", (None, None, None)),
        ("months => datediff(CURRENT_DATE, CURRENT_DATE)", (None, 0, None)),
    ],
)
def test_every_constant_of_spark_arrives_as_declared(functions, written, emitted):
    (row,) = functions.sql(f"SELECT * FROM given({written})").collect()
    assert (row.counts, row.months, row.place and row.place.asDict()) == emitted


@pytest.mark.connect
@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("patience => INTERVAL '1' YEAR", "is of type interval year, .*as an integer to get the number of months"),
        ("counts => v['a', 1]", r"a constant, not v\['a', 1\]: Spark cannot parse ','"),
        ("months => v + 1", r"a constant, not v \+ 1: `v` is a column"),
        ("patience => make_interval(1)", r"make_interval\(1\) is of type interval, which cannot be an argument$"),
    ],
)
def test_a_constant_that_cannot_be_sent_is_named_with_its_type(functions, written, why):
    with pytest.raises(PlanError, match=f"(?i)line 1, column 15: .*{why}"):
        functions.sql(f"SELECT * FROM given({written})")


def test_broadcast_rows_come_first_and_to_every_key(functions, spark):
    payments = spark.createDataFrame(
        [(card, 50.0 * card, START) for card in range(4)], "card int, amount double, time timestamp"
    )
    rules = spark.createDataFrame([("large", 1, 100.0, 0.0)], "name string, at_least int, total double, seconds double")
    found = functions.process("fraud_rules", {"payments": payments, "rule": rules}, partition_by={"payments": "card"})
    assert rows(found) == [(2, "large", 1, 100.0), (3, "large", 1, 150.0)]


def test_an_upsert_changelog_is_completed_by_the_row_before(functions, spark):
    changes = [("a", 1, "+I"), ("b", 2, "+I"), ("a", 3, "+U"), ("b", None, "-D"), ("c", None, "-D"), ("b", 4, "+U")]
    frame = spark.createDataFrame(changes, "k string, v int, row_kind string").coalesce(1)
    keyed = functions.process("to_changelog", frame, partition_by="k", changelog_mode=UPSERT)
    assert [(row.op, row.v) for row in keyed.collect() if row.k == "a"] == [
        ("INSERT", 1), ("UPDATE_BEFORE", 1), ("UPDATE_AFTER", 3),
    ]  # fmt: skip
    assert [(row.op, row.v) for row in keyed.collect() if row.k == "b"] == [("INSERT", 2), ("DELETE", 2), ("INSERT", 4)]
    whole = functions.process("to_changelog", frame, changelog_mode=UPSERT, upsert_key="k")
    assert whole.columns == ["op", "k", "v"]
    assert rows(whole.select("k", "op", "v")) == rows(keyed)


def test_a_changelog_says_what_kinds_of_change_it_has_wherever_it_goes(functions, spark):
    given = spark.createDataFrame([("a", 1), ("a", 2), ("b", 5), ("a", -1)], "k string, v bigint").coalesce(1)
    latest = functions.process("latest", given, partition_by="k")
    full = [
        ("a", "DELETE", 2), ("a", "INSERT", 1), ("a", "UPDATE_AFTER", 2), ("a", "UPDATE_BEFORE", 1), ("b", "INSERT", 5),
    ]  # fmt: skip
    found = functions.process("to_changelog", latest, partition_by="k")
    assert rows(found.select("k", "op", "v")) == full
    latest.where("v < 100").createOrReplaceTempView("latest_values")
    in_sql = functions.sql("SELECT k, op, v FROM to_changelog(input => TABLE latest_values PARTITION BY k)")
    assert rows(in_sql) == full
    # This also works without PARTITION BY, because the changes contain their key.
    assert rows(functions.process("to_changelog", latest).select("k", "op", "v")) == full
    with pytest.raises(PlanError, match=r"changelog_mode is .*UPDATE_BEFORE.*, but the table says that"):
        functions.process("kinds", latest, partition_by="k", changelog_mode="+I,-U,+U,-D")
    with pytest.raises(PlanError, match="without the rows that its updates and deletes replace"):
        require_retract(latest, "aggregates")
    timed, updated = (tumble(frame.withColumn("at", F.current_timestamp()), "at", "1 day") for frame in (given, latest))
    with pytest.raises(PlanError, match="window_join: right frame: the changelog has changes"):
        window_join(timed, updated, on="k")


def test_deletes_by_key_are_not_taken_for_whole_rows(remote, spark):
    functions = remote(*map(declare_process, [LatestByKey, Kinds]))
    given = spark.createDataFrame([("a", 1), ("b", 5), ("a", -1)], "k string, v bigint").coalesce(1)
    latest = functions.process("latest_by_key", given, partition_by="k")
    for mode in (None, UPSERT):
        found = functions.process("kinds", latest, partition_by="k", changelog_mode=mode)
        assert rows(found) == [("a", "+I", "a,1"), ("a", "-D", "a,None"), ("b", "+I", "b,5")]
    with pytest.raises(PlanError, match=r"a -D has all columns, but .* key only: set key_only_deletes"):
        functions.process("kinds", latest, partition_by="k", changelog_mode="+I,+U,-D")


def test_the_mode_of_a_changelog_is_said_in_sql_and_checked(functions, spark):
    changes = [("a", 1, "+I"), ("a", 2, "+U"), ("a", 7, "-D"), ("b", 3, "+I"), ("b", 4, "+U")]
    spark.createDataFrame(changes, "k string, v int, row_kind string").coalesce(1).createOrReplaceTempView("changes")

    def called(function, arguments):
        table = "input" if function == "to_changelog" else "rows"
        return functions.sql(f"SELECT * FROM {function}({table} => TABLE changes PARTITION BY k, {arguments})")

    mode = "changelog_mode => '+I,+U,-D'"
    assert [row[1] for row in rows(called("to_changelog", mode)) if row[0] == "b"] == [
        "INSERT", "UPDATE_AFTER", "UPDATE_BEFORE",
    ]  # fmt: skip
    assert rows(called("kinds", f"{mode}, key_only_deletes => TRUE"))[:3] == [
        ("a", "+I", "a,1"), ("a", "+U", "a,2"), ("a", "-D", "a,None"),
    ]  # fmt: skip
    with pytest.raises(Exception, match=r"row_kind.*\+U is not a kind of change of this changelog"):
        called("kinds", "changelog_mode => '+I,-D'").collect()
    with pytest.raises(PlanError, match=r"changelog_mode: '\+X' is not a kind of change; write a mode as '\+I,\+U,-D'"):
        called("kinds", "changelog_mode => '+X'")


def test_a_partial_delete_keeps_the_key_of_the_changes(functions, spark):
    frame = spark.createDataFrame([("a", 1, 2, "+I"), ("a", 1, 2, "-D")], "k string, v int, w int, row_kind string")
    for key, kept in (((), ("a", 1, 2)), ("k", ("a", None, None)), (["k", "v"], ("a", 1, None))):
        found = functions.process("to_changelog", frame.coalesce(1), produces_full_deletes=False, upsert_key=key)
        assert [tuple(row)[1:] for row in found.where("op = 'DELETE'").collect()] == [kept]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"name": "running"}, "running@1: Table argument 'rows' requires a PARTITION BY clause"),
        ({"name": "running", "partition_by": "x"}, "Invalid column 'x' for PARTITION BY clause. Available.*k, v"),
        ({"name": "running", "partition_by": "k", "m": 1}, "running@1 has no argument 'm'"),
        ({"name": "running", "partition_by": "k", "uid": "a b"}, "Invalid unique identifier 'a b'"),
        (
            {"name": "running", "partition_by": "k", "on_time": "v"},
            "Unsupported data type for time attribute: column 'v'",
        ),
        (
            {"name": "running", "partition_by": {"row": "k"}},
            "running@1, partition_by: no table argument 'row': running",
        ),
        ({"name": "running", "partition_by": "k", "order_by": {"row": "v"}}, "order_by: no table argument 'row'"),
        (
            {"name": "running", "partition_by": "k", "changelog_mode": {"row": "+I"}},
            "changelog_mode: no table argument",
        ),
        ({"name": "running", "partition_by": "k", "upsert_key": {"row": "k"}}, "upsert_key: no table argument 'row'"),
        (
            {"name": "running", "partition_by": "k", "changelog_mode": ("+I", "-D")},
            "changelog_mode of table 'rows': expected a ChangelogMode or a text .*, not .'[+]I', '-D'.",
        ),
        ({"name": "doubled", "partition_by": "k"}, "Only tables with set semantics may be partitioned"),
        ({"name": "to_changelog", "op": ["a", "b"]}, "to_changelog@1: .*'op' must contain exactly one column name"),
        (
            {"name": "session_alerts", "partition_by": "k"},
            "session_alerts@1: .*'input' requires a time attribute",
        ),
    ],
)
def test_a_wrong_call_is_refused_before_it_runs(functions, spark, call, message):
    frame = spark.range(3).selectExpr("id AS k", "id AS v")
    with pytest.raises(PlanError, match=message):
        functions.process(call.pop("name"), frame, **call)


@pytest.mark.connect
@pytest.mark.parametrize("parameter", ["partition_by", "order_by", "on_time", "upsert_key"])
def test_a_column_instead_of_its_name_is_refused(functions, spark, parameter):
    frame = spark.range(3).selectExpr("id AS k", "id AS v")
    for column in (F.col("k"), [F.col("k")]):
        with pytest.raises(PlanError, match=f"^{parameter} takes names of columns, not Column"):
            functions.process("running", frame, **{"partition_by": "k", parameter: column})


def test_an_upsert_changelog_without_a_key_is_refused(functions, spark):
    frame = spark.createDataFrame([("a", "+I")], "k string, row_kind string")
    with pytest.raises(PlanError, match=r"table argument 'input': upsert changes .* give upsert_key, or partition_by"):
        functions.process("to_changelog", frame, changelog_mode=UPSERT)
