"""A shop's clicks and payments through process table functions: sessions, a funnel, a join, rules, medians.

    make demo                          # once: it installs what this needs
    .venv/bin/python -m examples.process_tables

The functions are those of plugins/udf_process, on an embedded server.
"""

import datetime as dt
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.session import local_session
from spark_client import RemoteSession, connect

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
CLICKS = [
    ("Ann", "view", 0), ("Ann", "cart", 2), ("Ann", "pay", 5), ("Ann", "view", 90), ("Ann", "cart", 91),
    ("Bob", "view", 1), ("Bob", "view", 4), ("Bob", "cart", 45), ("Cem", "pay", 3),
]  # fmt: skip
PAYMENTS = [("c1", 20.0, 0), ("c1", 30.0, 1), ("c1", 25.0, 2), ("c2", 900.0, 5), ("c1", 20.0, 0), ("c2", 15.0, 8)]


def main() -> None:
    spark = local_session(2)
    remote = connect(spark, "local:udf_process")
    for title, frame in results(spark, remote).items():
        print(f"\n{title}")
        frame.show(truncate=False)
    spark.stop()


def results(spark: SparkSession, remote: RemoteSession) -> dict[str, DataFrame]:
    """Returns the result of each function for the shop's day, by title."""
    clicks = _timed(spark, CLICKS, "user string, step string")
    payments = _timed(spark, PAYMENTS, "card string, amount double")
    half_an_hour = dt.timedelta(minutes=30)
    once = remote.process("deduplicate", payments, partition_by=["card", "amount", "ts"])
    rules = spark.createDataFrame(
        [("burst", 3, 0.0, 120.0), ("large", 1, 500.0, 0.0)], "name string, at_least int, total double, seconds double"
    )
    carts = clicks.where("step = 'cart'").select("user", F.date_format("ts", "mm:ss").alias("cart"), "ts")
    paid = clicks.where("step = 'pay'").select("user", F.date_format("ts", "mm:ss").alias("paid"), "ts")
    clicks.createOrReplaceTempView("clicks")
    return {
        "Sessions, told of when a user was silent for half an hour": remote.process(
            "session_alerts", clicks, partition_by="user", order_by="ts", on_time="ts", gap=half_an_hour
        ),
        "How far users got within half an hour, in SQL": remote.sql("""
            SELECT user, started, made, completed FROM funnel(
              input => TABLE clicks PARTITION BY user ORDER BY ts, on_time => DESCRIPTOR(ts),
              steps => array('view', 'cart', 'pay'), within => INTERVAL '30' MINUTE)"""),
        "Carts and the payment that followed, if one did": remote.process(
            "one_match_join", {"left": carts, "right": paid}, partition_by="user", on_time="ts", patience=half_an_hour
        ),
        "Payments, each once": once,
        "Payments that break a rule": remote.process(
            "fraud_rules", {"payments": once, "rule": rules}, partition_by={"payments": "card"},
            order_by={"payments": "ts"}, time="ts",
        ),
        "Payments beside the median of the last three": remote.process(
            "trailing_median", once, partition_by="card", order_by="ts", column="amount", rows=3
        ),
    }  # fmt: skip


def _timed(spark: SparkSession, rows: Sequence[tuple[str, object, int]], columns: str) -> DataFrame:
    timed = [(*values, NOON + dt.timedelta(minutes=minute)) for *values, minute in rows]
    return spark.createDataFrame(timed, f"{columns}, ts timestamp")


if __name__ == "__main__":
    main()
