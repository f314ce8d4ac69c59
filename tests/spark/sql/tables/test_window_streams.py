"""Window aggregate, top-N and join in SQL on streams: recognised by shape, emitted once when a window closes."""

import os

import pytest

from spark_client import PlanError
from tests.spark_client.executor.aggregate.world import Total
from udf_server.aggregate.declaration import declare_aggregate

FILES = [
    [("x", 1, 1), ("y", 2, 12)],
    [("x", 5, 4), ("y", 7, 31)],
    [("x", 1, 90)],
    [("x", 100, 3), ("y", 50, 84)],  # the first is late, the second not
    [("x", 1, 150)],
]
"""Key, value, seconds after midnight; a micro-batch each. The watermark is ten seconds behind."""
TUMBLED = "TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '10' SECOND))"


@pytest.fixture
def sql(spark, tmp_path, remote):
    """Runs a query over the stream `events`, and `others`, to its end in append mode."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, rows in enumerate(FILES):
        path = folder / f"{number}.csv"
        path.write_text("".join(f"{k},{v},2024-01-01T00:{s // 60:02}:{s % 60:02}\n" for k, v, s in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)
    for name in ("events", "others"):
        source = spark.readStream.schema("k string, v bigint, at timestamp").option("maxFilesPerTrigger", 1)
        source.csv(str(folder)).withWatermark("at", "10 seconds").createOrReplaceTempView(name)
    functions = remote(declare_aggregate(Total()))

    def run(query, *before):
        for statement in before:
            functions.sql(statement)
        frame = functions.sql(query)
        writer = frame.writeStream.outputMode("append").option("checkpointLocation", str(tmp_path / "checkpoint"))
        stream = writer.format("memory").queryName("found").trigger(availableNow=True).start()
        stream.awaitTermination(100)
        assert stream.exception() is None
        assert not [name for name in frame.columns if name.startswith("__")]
        return sorted((tuple(row) for row in spark.table("found").collect()), key=str)

    yield run
    for view in ("events", "others", "w"):
        spark.catalog.dropTempView(view)


SECOND = "unix_timestamp(window_start) % 3600"
START = f"CAST({SECOND.replace('window_start', 'CAST(window_start AS timestamp)')} AS INT) AS s"


def test_built_in_and_remote_aggregates_of_windows_go_out_once(sql):
    query = f"""
        SELECT {START}, sum(v), total(v).sum FROM {TUMBLED} WHERE v > 0 GROUP BY window_start, window_end
    """
    assert sql(query) == [(0, 6, 6), (10, 2, 2), (30, 7, 7), (80, 50, 50), (90, 1, 1)]


def test_plain_aggregates_of_windows_of_a_view_need_no_more_than_the_windows(sql):
    found = sql(
        f"SELECT k, {START}, count(*) FROM w GROUP BY k, window_start, window_end",
        f"CREATE TEMPORARY VIEW w AS SELECT * FROM {TUMBLED}",
    )
    assert found == [("x", 0, 2), ("x", 90, 1), ("y", 10, 1), ("y", 30, 1), ("y", 80, 1)]


def test_grouping_sets_of_a_stream_have_a_grouping_id_and_log_no_error(sql, caplog):
    keys = "GROUP BY window_start, window_end, ROLLUP(k)"
    found = sql(f"SELECT k, {START}, grouping_id() AS g, total(v).sum FROM {TUMBLED} WHERE v < 5 {keys}")
    assert [row[:4] for row in found if row[1] == 0] == [("x", 0, 0, 1), (None, 0, 2, 1)] and len(found) == 6
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_windows_of_a_stream_are_grouped_without_an_aggregate(sql):
    found = sql(f"SELECT k, {START} FROM {TUMBLED} WHERE k = 'x' GROUP BY k, window_start, window_end")
    assert found == [("x", 0), ("x", 90)]


def test_distinct_windows_of_a_stream_are_its_groups(sql):
    query = f"SELECT DISTINCT upper(k) AS k, 1 AS one, window_end, window_start, {START} FROM {TUMBLED} WHERE v < 7"
    assert sql(f"SELECT k, s, one FROM ({query}) WHERE k = 'X'") == [("X", 0, 1), ("X", 90, 1)]


def test_distinct_values_of_a_stream_are_those_of_a_filter(sql):
    one, other = "count(DISTINCT k) FILTER (WHERE v > 1)", "sum(DISTINCT v) FILTER (WHERE k = 'y')"
    found = sql(f"SELECT {START}, {one}, {other} FROM {TUMBLED} GROUP BY window_start, window_end")
    assert found == [(0, 1, None), (10, 1, 2), (30, 1, 7), (80, 1, 50), (90, 0, None)]


def test_top_n_over_an_aggregate_ranks_what_a_window_has_in_the_end(sql):
    query = f"""
        SELECT * FROM (
          SELECT k, s, rank() OVER (PARTITION BY window_start, window_end ORDER BY total DESC) AS place
          FROM (
            SELECT k, window_start, window_end, {START}, sum(v) AS total
            FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '1' MINUTE))
            GROUP BY k, window_start, window_end
          )
        ) WHERE place <= 1
    """
    assert sql(query) == [("x", 0, 1), ("y", 60, 1)]


def test_rows_of_a_window_may_be_ranked_by_its_time_as_well(sql):
    over = "PARTITION BY window_end, k, window_time, window_start ORDER BY v DESC"
    ranked = f"SELECT k, v, {START}, ROW_NUMBER() OVER ({over}) AS place FROM {TUMBLED}"
    found = sql(f"SELECT k, v, s FROM ({ranked}) WHERE place <= 1 AND s < 20")
    assert found == [("x", 5, 0), ("y", 2, 10)]


def test_deduplication_keeps_the_last_row_of_a_window(sql):
    query = f"""
        SELECT v, {START} FROM (
          SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY at DESC) AS n FROM {TUMBLED}
        ) WHERE (n = 1 AND v > 1)
    """
    assert sql(query) == [(2, 10), (5, 0), (50, 80), (7, 30)]


@pytest.mark.parametrize(
    ("arguments", "remote_one"),
    [
        ("INTERVAL '10' SECOND, INTERVAL '1' MINUTE, INTERVAL '0' SECOND, true", ""),
        ("STEP => INTERVAL '10' SECOND, SIZE => INTERVAL '1' MINUTE, EMITONLYONUPDATE => true", ", total(v).sum"),
    ],
)
def test_a_window_that_grew_without_rows_is_left_out_when_only_updates_are_asked_for(sql, arguments, remote_one):
    named = "=>" in arguments
    table = f"{'DATA => ' * named}TABLE events, {'TIMECOL => ' * named}DESCRIPTOR(at), {arguments}"
    end = START.replace("window_start", "window_end")
    found = sql(
        f"SELECT {end}, sum(v), max(at) IS NULL {remote_one} FROM CUMULATE({table}) GROUP BY window_start, window_end"
    )
    # The late row of the first step counts in windows that are open, and updates none of them.
    sums = [(10, 6), (20, 8), (40, 115), (90, 50), (100, 51)]
    assert sorted((row[0], row[1]) for row in found) == sums
    assert all(row[3:] == row[1:2] for row in found) or not remote_one


JOINED = "ON l.window_start = r.window_start AND l.window_end = r.window_end"
RIGHT = "TUMBLE(TABLE (SELECT * FROM others WHERE v % 2 = 1), DESCRIPTOR(at), INTERVAL '10' SECOND)"


def test_outer_join_of_aggregated_windows_gives_what_has_no_partner_when_the_window_is_over(sql):
    query = f"""
        SELECT l.k, l.n, r.n FROM
          (SELECT k, window_start, window_end, count(*) AS n FROM {TUMBLED} GROUP BY k, window_start, window_end) l
          LEFT JOIN
          (SELECT k, window_start, window_end, sum(v) AS n FROM {RIGHT} GROUP BY k, window_start, window_end) r
        {JOINED} AND l.k = r.k
    """
    assert sql(query) == [("x", 1, 1), ("x", 2, 6), ("y", 1, 7), ("y", 1, None), ("y", 1, None)]


def test_null_keys_of_a_full_join_find_no_partner(sql):
    sides = (
        f"(SELECT nullif(v, 1) AS v, window_start, window_end FROM {table})"
        for table in (TUMBLED, TUMBLED.replace("events", "others"))
    )
    found = sql("SELECT l.v, r.v FROM {} l FULL JOIN {} r {} AND l.v = r.v".format(*sides, JOINED))
    # Three on the left, two of which are in windows that end, as those on the right.
    assert found == [(2, 2), (5, 5), (50, 50), (7, 7), *[(None, None)] * 5]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("EXISTS (SELECT * FROM {right} r WHERE {on})", [1, 1, 1, 5, 7]),
        ("EXISTS (SELECT * FROM {right} r WHERE {on} AND l.v <= r.v) AND v < 7", [1, 1, 1, 5]),
        ("NOT EXISTS (SELECT * FROM {right} r WHERE {on})", [2, 50]),
        ("l.v NOT IN (SELECT v FROM {right} r WHERE {on})", [2, 50]),
    ],
)
def test_semi_and_anti_joins_of_windows_keep_rows_or_leave_them_out(sql, condition, expected):
    """A semi join needs no end of a window to know that a row has a partner."""
    on = JOINED.removeprefix("ON ")
    query = f"SELECT v FROM (SELECT * FROM {TUMBLED}) l WHERE {condition.format(right=RIGHT, on=on)}"
    assert sorted(row[0] for row in sql(query)) == expected


def test_a_window_join_whose_state_would_stay_is_refused(sql):
    """Windows without a watermark, and without the column that has it, are never over."""
    rows = "SELECT k, v, CAST(at AS timestamp_ntz) AS at FROM others"
    other = f"(SELECT * FROM TABLE(TUMBLE(TABLE ({rows}), DESCRIPTOR(at), INTERVAL '10' SECOND))) AS o"
    on = "w.window_start = o.window_start AND w.window_end = o.window_end"
    with pytest.raises(PlanError, match=r"window_time with a watermark on both sides.* o has none"):
        sql(f"SELECT w.k, o.v FROM {TUMBLED} AS w JOIN {other} ON {on}")
