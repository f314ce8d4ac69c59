"""The closing example of FLIP-145: top items since midnight, every ten minutes, and distinct buyers per seller.

    make demo                          # once: it installs what this needs
    .venv/bin/python -m examples.windows

The orders of a day are generated. The results of the windows are compared with plain SQL over the same orders.
"""

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.session import local_session
from spark_client import RemoteSession, connect

__all__ = ["BUYERS", "TOP_ITEMS", "buyers_in_plain_sql", "orders", "top_items_in_plain_sql"]

PLUGIN = '''
import udf_server as udf


class Buyers(udf.AggregateFunction):
    """How many different buyers there are; imagine a sketch of another team here."""

    nulls = "skip"

    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, accumulator, buyer: int):
        return accumulator if buyer in accumulator else [*accumulator, buyer]

    def merge(self, accumulator, others):
        return sorted({buyer for each in [accumulator, *others] for buyer in each})

    def get_value(self, accumulator) -> int:
        return len(accumulator)
'''

TOP_ITEMS = """
    SELECT window_end, place, item, sales FROM (
      SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY sales DESC, item) AS place FROM (
        SELECT window_start, window_end, item, sum(price) AS sales
        FROM TABLE(CUMULATE(TABLE orders, DESCRIPTOR(ordered_at), INTERVAL '10' MINUTES, INTERVAL '1' DAY))
        GROUP BY window_start, window_end, item
      )
    ) WHERE place <= 100
"""
"""The top 100 items by sales since midnight, every ten minutes."""

BUYERS = """
    SELECT window_end, seller, buyers(buyer) AS buyers, count(*) AS orders
    FROM TABLE(CUMULATE(TABLE orders, DESCRIPTOR(ordered_at), INTERVAL '10' MINUTES, INTERVAL '1' DAY))
    GROUP BY window_start, window_end, seller
"""
"""The different buyers each seller had since midnight, every ten minutes."""

_STEPS = """
    SELECT explode(sequence(
      TIMESTAMP_NTZ '2024-05-01 00:10:00', TIMESTAMP_NTZ '2024-05-02 00:00:00', INTERVAL '10' MINUTE
    )) AS step
"""


def orders(spark: SparkSession, count: int) -> DataFrame:
    """Returns `count` orders of one day, which are equal in every run; some items sell better than others."""
    rows = spark.range(count)
    picked = F.pmod(F.xxhash64("id"), F.lit(1000))
    return rows.select(
        F.expr(f"timestamp_ntz '2024-05-01 00:00:00' + make_dt_interval(0, 0, 0, id * 86400 / {count})").alias(
            "ordered_at"
        ),
        F.concat(F.lit("item "), F.floor(picked * picked / 6000)).alias("item"),
        F.pmod(F.xxhash64("id", F.lit(1)), F.lit(20)).alias("seller"),
        F.pmod(F.xxhash64("id", F.lit(2)), F.lit(300)).cast("int").alias("buyer"),
        (F.pmod(F.xxhash64("id", F.lit(3)), F.lit(900)) + 100).alias("price"),
    )


def top_items_in_plain_sql(spark: SparkSession) -> DataFrame:
    """TOP_ITEMS without windows: every step is joined with the orders before it."""
    return spark.sql(f"""
        SELECT step AS window_end, place, item, sales FROM (
          SELECT *, row_number() OVER (PARTITION BY step ORDER BY sales DESC, item) AS place FROM (
            SELECT step, item, sum(price) AS sales FROM ({_STEPS}) JOIN orders ON ordered_at < step GROUP BY step, item
          )
        ) WHERE place <= 100
    """)


def buyers_in_plain_sql(spark: SparkSession) -> DataFrame:
    """BUYERS without windows and remote functions."""
    return spark.sql(f"""
        SELECT step AS window_end, seller, count(DISTINCT buyer) AS buyers, count(*) AS orders
        FROM ({_STEPS}) JOIN orders ON ordered_at < step GROUP BY step, seller
    """)


def connected(spark: SparkSession, folder: Path) -> RemoteSession:
    """Returns a remote session with the function `buyers`, whose file is written to the folder."""
    (folder / "buyers.py").write_text(PLUGIN)
    return connect(spark, plugins=[str(folder / "buyers.py")])


def main() -> None:
    spark = local_session(2)
    remote = connected(spark, Path(tempfile.mkdtemp(prefix="remote-udf-windows-")))
    orders(spark, 5_000).createOrReplaceTempView("orders")

    for title, ours, plain in [
        ("Top items at noon", remote.sql(TOP_ITEMS), top_items_in_plain_sql(spark)),
        ("Buyers per seller at noon", remote.sql(BUYERS), buyers_in_plain_sql(spark)),
    ]:
        print(title)
        ours.where("window_end = timestamp_ntz '2024-05-01 12:00:00'").orderBy(*ours.columns).show(5)
        same = sorted(map(tuple, ours.collect())) == sorted(map(tuple, plain.collect()))
        print("All rows of the day are those of plain SQL." if same else "The rows are NOT those of plain SQL.")
    spark.stop()


if __name__ == "__main__":
    main()
