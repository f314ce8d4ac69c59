"""The requests that planning sends to Spark before a query runs."""

from collections.abc import Iterator

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from tests.spark_client.aggregate.world import ALL
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process


@udf.scalar
async def plus_ten(x: int) -> int:
    return x + 10


class Repeated(udf.ProcessTableFunction):
    name, returns = "repeated", "word string, shouted boolean"

    def eval(self, word: str, times: int, shouted: bool) -> Iterator[tuple[str, bool]]:
        for _ in range(times):
            yield word, shouted


@pytest.fixture
def session(remote):
    return remote(plus_ten, *map(declare_aggregate, ALL), declare_process(Repeated))


@pytest.fixture
def reads(spark, monkeypatch):
    """Counts how often all settings of the session are read."""
    conf, counted = type(spark.conf), []
    original = conf.getAll

    def get_all(self):
        counted.append(1)
        return original.fget(self)

    monkeypatch.setattr(conf, "getAll", property(get_all))
    return counted


def test_settings_are_read_once_for_each_query(session, spark, reads):
    session.sql("SELECT plus_ten(id), plus_ten(plus_ten(id)) FROM range(3) WHERE plus_ten(id) > 10")
    assert len(reads) == 1
    session.sql("SELECT total(id), total(id + 1) FROM range(3) GROUP BY id % 2")
    assert len(reads) == 2
    session.group_by(spark.range(3)).agg(session.function("total")("id"), session.function("rows")(), F.sum("id"))
    assert len(reads) == 3
    session.sql("SELECT * FROM repeated('a', 2, true)")
    assert len(reads) == 4


def test_a_setting_that_changes_holds_for_the_next_query(session, spark):
    key = "spark.remoteudf.async-scalar.plus_ten.tiemout"
    session.sql("SELECT plus_ten(id) FROM range(3)")
    spark.conf.set(key, "1 s")
    try:
        with pytest.raises(Exception, match="tiemout"):
            session.sql("SELECT plus_ten(id) FROM range(3)")
    finally:
        spark.conf.unset(key)
    assert session.sql("SELECT plus_ten(id) AS y FROM range(1)").collect() == [(10,)]


def test_literals_of_a_process_function_run_no_job(session, spark):
    context = spark.sparkContext
    context.setJobGroup("planning", "planning")
    try:
        frame = session.sql("SELECT * FROM repeated('it is', -1, FALSE)")
        assert context.statusTracker().getJobIdsForGroup("planning") == []
        assert frame.collect() == []
        expressions = session.sql("SELECT * FROM repeated(upper('it\\'s'), 1 + 1, not true)")
        assert expressions.collect() == [("IT'S", False)] * 2
    finally:
        context._jsc.clearJobGroup()  # PySpark can set job groups but not clear them
