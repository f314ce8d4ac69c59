"""The example of process table functions."""

from examples.process_tables import results
from spark_client import connect


def test_every_function_has_its_say(spark):
    found = {
        title.split(",")[0]: frame.collect()
        for title, frame in results(spark, connect(spark, "local:udf_process")).items()
    }
    sessions, funnel, carts, once, alerts, medians = found.values()
    assert sorted((row.user, row.events) for row in sessions) == [
        ("Ann", 2), ("Ann", 3), ("Bob", 1), ("Bob", 2), ("Cem", 1),
    ]  # fmt: skip
    assert sorted((row.user, row.made, row.completed) for row in funnel) == [
        ("Ann", 2, False), ("Ann", 3, True), ("Bob", 1, False),
    ]  # fmt: skip
    assert {(row.user, row.left_value, row.right_value) for row in carts} >= {
        ("Ann", "02:00", "05:00"),
        ("Ann", "31:00", None),
    }
    assert len(once) == 5
    assert sorted((row.card, row.rule) for row in alerts) == [("c1", "burst"), ("c2", "large")]
    assert [row["median"] for row in medians if row.card == "c1"] == [20.0, 25.0, 25.0]
