"""The requests that planning sends to Spark before a query runs."""

from collections.abc import Iterator

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client.base.settings import all_settings
from tests.spark_client.executor.aggregate.world import ALL
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


class JavaConf:
    """The JVM's settings without the map of all of them as a Scala object."""

    def __init__(self, java):
        self._java = java

    def __getattr__(self, name):
        if name == "getAll":
            raise AttributeError(name)
        return getattr(self._java, name)


@pytest.fixture
def reads(spark, monkeypatch):
    """Counts how often all settings of the session are read, in the way that PySpark documents."""
    conf, counted = type(spark.conf), []
    original = conf.getAll

    def get_all(self):
        counted.append(1)
        return original.fget(self)

    monkeypatch.setattr(conf, "getAll", property(get_all))
    monkeypatch.setattr(spark.conf, "_jconf", JavaConf(spark.conf._jconf))
    return counted


@pytest.fixture
def commands(spark, monkeypatch):
    """Counts the commands that are sent to the JVM."""
    client, counted = spark._jvm._gateway_client, []
    original = client.send_command

    def send(command, *arguments, **options):
        # Python's garbage collector releases objects of the JVM whenever it runs: these commands are not counted.
        if not command.startswith("m\nd\n"):
            counted.append(command)
        return original(command, *arguments, **options)

    monkeypatch.setattr(client, "send_command", send)
    return counted


QUERIES = {
    "scalar": ("SELECT plus_ten(id) FROM range(3)", 26),
    "fused scalars": ("SELECT plus_ten(id), plus_ten(id + 1) AS y FROM range(3)", 36),
    "aggregate without keys": ("SELECT total(id) AS a, total(id + 1) AS b FROM range(3)", 70),
    "aggregate": ("SELECT id % 2, total(id) FROM range(3) GROUP BY id % 2", 58),
    "process": ("SELECT * FROM repeated('a', 2, true)", 52),
}
"""A query of each kind, and the most commands that planning it may take."""


@pytest.mark.parametrize("kind", QUERIES)
def test_planning_takes_few_commands(session, commands, kind):
    text, most = QUERIES[kind]
    session.sql(text)
    commands.clear()
    session.sql(text)

    assert len(commands) <= most


def test_forty_calls_in_select_take_few_commands(session, spark, commands):
    plus = session.function("plus_ten")
    # A query that has an expression around an aggregate makes no later one dearer.
    shown = F.to_json(session.function("total")("id"))
    session.group_by(spark.range(3)).agg(shown)
    frame = spark.range(3).selectExpr(*(f"id + {number} AS x{number}" for number in range(8)))
    calls = [plus(f"x{number % 8}").alias(f"y{number}") for number in range(40)]
    session.select(frame, *calls)
    commands.clear()
    session.select(frame, *calls)
    assert len(commands) <= 100


def test_a_keyed_aggregate_of_a_frame_takes_few_commands(session, spark, commands):
    frame, total = spark.range(3).selectExpr("id % 2 AS k", "id AS v"), session.function("total")
    session.group_by(frame, "k").agg(total("v"))
    commands.clear()
    session.group_by(frame, "k").agg(total("v"))
    assert len(commands) <= 42


def test_spark_is_asked_once_what_a_name_means(session, spark, monkeypatch):
    catalog, asked = type(spark.catalog), []
    original = catalog.functionExists

    def exists(self, name, *rest):
        asked.append(name)
        return original(self, name, *rest)

    monkeypatch.setattr(catalog, "functionExists", exists)
    for _ in range(2):
        session.sql("SELECT Total(id), sum(id) FROM range(3)")
    assert sorted(asked) == ["`Total`", "`sum`"]
    assert session.sql("SELECT TOTAL(id) AS t FROM range(3)").columns == ["t"]
    assert len(asked) == 2


def test_settings_are_read_once_for_each_query(session, spark, reads):
    session.sql("SELECT plus_ten(id), plus_ten(plus_ten(id)) FROM range(3) WHERE plus_ten(id) > 10")
    assert len(reads) == 1
    session.sql("SELECT total(id), total(id + 1) FROM range(3) GROUP BY id % 2")
    assert len(reads) == 2
    session.group_by(spark.range(3)).agg(session.function("total")("id"), session.function("rows")(), F.sum("id"))
    assert len(reads) == 3
    session.sql("SELECT * FROM repeated('a', 2, true)")
    assert len(reads) == 4


def test_all_settings_take_two_commands(spark, commands):
    spark.conf.set("spark.remoteudf.lines", "one\ntwo, (three)\n")
    try:
        commands.clear()
        found = all_settings(spark)
        assert len(commands) == 2
        assert found == spark.conf.getAll
    finally:
        spark.conf.unset("spark.remoteudf.lines")


def test_all_settings_are_those_that_pyspark_reads_where_only_pyspark_can_read_them(spark, reads):
    assert all_settings(spark) == spark.conf.getAll
    assert len(reads) == 2


def test_a_setting_may_contain_arrows(spark):
    spark.conf.set("spark.remoteudf.odd -> key", "a -> b")
    try:
        assert all_settings(spark) == spark.conf.getAll
    finally:
        spark.conf.unset("spark.remoteudf.odd -> key")


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
