"""The words of Spark's grammar are names beside a remote aggregate wherever they are for Spark: some are drawn."""

import os
import random

import pytest
from pyspark.errors import PySparkException

from spark_client import connect
from tests.conftest import serving
from tests.spark.sql.test_as_spark import MySum
from udf_server.aggregate.declaration import declare_aggregate

SEED = random.randrange(1 << 31) if os.environ.get("REMOTE_UDF_SEED") == "random" else 40
DRAWN = None if os.environ.get("ALL_WORDS") else 10
QUERIES = [
    "SELECT ALL {w}, 2 * {w} AS a, {w} - 1 AS b, {w} * 2 AS {w}, words.{w} AS c, SUM(v) AS s FROM words GROUP BY {w}",
    "SELECT DISTINCT {w}, -{w} AS x, coalesce(NULL, {w}) AS y, SUM(v) OVER (PARTITION BY {w} ORDER BY v) AS s "
    "FROM words WHERE words.{w} >= 0 AND {w} IS NOT NULL",
]


@pytest.fixture(scope="module")
def remote(spark):
    with serving(declare_aggregate(MySum)) as server:
        yield connect(spark, server.target)


def outcome(session, query):
    """The columns and rows of a query; None if Spark does not understand it."""
    try:
        frame = session.sql(query)
        return frame.columns, sorted(map(repr, frame.collect()))
    except PySparkException:
        return None


@pytest.mark.long
def test_a_word_is_a_name_where_it_is_one_for_spark(remote):
    print(f"seed {SEED}")
    words = sorted(row[0].lower() for row in remote.spark.sql("SELECT keyword FROM sql_keywords()").collect())
    understood, wrong = 0, {}
    for word in random.Random(SEED).sample(words, DRAWN or len(words)):
        remote.spark.range(3).selectExpr("id AS v", f"id % 2 AS `{word}`").createOrReplaceTempView("words")
        for query in (each.format(w=word) for each in QUERIES):
            if (expected := outcome(remote.spark, query)) is not None:
                understood += 1
                try:
                    found = outcome(remote, query.replace("SUM(", "my_sum("))
                except Exception as error:  # Any exception: each is a difference
                    found = f"{type(error).__name__}: {error}"[:300]
                if found != expected:
                    wrong[query] = found
    remote.spark.catalog.dropTempView("words")
    assert understood > len(QUERIES) and wrong == {}
