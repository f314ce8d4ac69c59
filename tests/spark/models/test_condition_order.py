"""Remote conditions of a WHERE in SQL: their order by measured cost, and what stays as written."""

import asyncio
import itertools

import pytest

import udf_server as udf
from remote_udf.errors import InvalidOption
from spark_client import connect
from tests.counted_calls import CountedCalls
from udf_server import CallContext

CALLS = CountedCalls()
ROWS = 3_000
SAMPLE = 60


@udf.scalar
async def dear(context: CallContext, x: int) -> bool:
    CALLS.add("dear")
    context.spend(usd=1.0)
    return x % 2 == 0


@udf.scalar
async def cheap(context: CallContext, x: int) -> int:
    CALLS.add("cheap")
    context.spend(usd=0.01)
    return x % 3


@udf.scalar
async def slow(x: int) -> bool:
    CALLS.add("slow")
    await asyncio.sleep(0.001)
    return x % 5 == 0


@udf.scalar
async def strict(x: int) -> bool:
    CALLS.add("strict")
    if x % 7 == 3:
        raise ValueError("not this one")
    return True


@udf.scalar(deterministic=False)
async def moody(x: int) -> bool:
    CALLS.add("moody")
    return x % 2 == 0


CONDITIONS = {
    "dear(id)": lambda x: x % 2 == 0,
    "cheap(t.id) = 0": lambda x: x % 3 == 0,
    "slow(id)": lambda x: x % 5 == 0,
}


@pytest.fixture
def server(spark, serve):
    CALLS.clear()
    # Parts of different parity, so that no part is like the whole.
    spark.range(0, ROWS, 1, 4).createOrReplaceTempView("t")
    yield serve(dear, cheap, slow, strict, moody)
    spark.catalog.dropTempView("t")


@pytest.mark.connect
@pytest.mark.parametrize("order", list(itertools.permutations(CONDITIONS)))
def test_every_order_of_the_text_gives_the_same_rows_for_the_least_cost(spark, server, order):
    remote = connect(spark, server.target, condition_sample=SAMPLE)
    query = f"SELECT id FROM t WHERE {' AND '.join(order)} AND id <> 30"
    found = remote.sql(query)
    CALLS.clear()
    expected = [x for x in range(ROWS) if x != 30 and all(condition(x) for condition in CONDITIONS.values())]
    assert sorted(row.id for row in found.collect()) == expected
    # The condition without a price is first, then the cheap one.
    assert CALLS["slow"] == ROWS - 1
    assert CALLS["cheap"] == ROWS // 5 - 1
    assert CALLS["dear"] == ROWS // 15 - 1


def test_explain_tells_the_order_and_its_reasons_and_measures_once(spark, server):
    remote = connect(spark, server.target, condition_sample=SAMPLE)
    query = "SELECT id FROM t WHERE dear(id) AND cheap(id) = 0"
    shown = str(remote.explain(query))
    assert f"WHERE: conditions run in the order measured on {SAMPLE} rows, " in shown
    assert "80 calls rather than 90: cheap(id) = 0 (33% of 60 pass, " in shown
    assert "0.01 usd a row), dear(id) (50% of 20 pass, " in shown
    measured = dict(CALLS)
    print(shown[:600])
    assert measured == {"dear": SAMPLE, "cheap": SAMPLE}
    remote.explain(query)
    remote.sql(query)
    assert measured == CALLS


def test_without_a_sample_the_order_of_the_text_holds(spark, server):
    connect(spark, server.target).sql("SELECT id FROM t WHERE dear(id) AND slow(id)").collect()
    assert CALLS == {"dear": ROWS, "slow": ROWS // 2}


def test_conditions_of_common_tables_are_ordered(spark, server):
    remote = connect(spark, server.target, condition_sample=SAMPLE)
    query = """WITH few AS (SELECT id FROM t WHERE dear(id) AND slow(id))
        SELECT count(*) FROM few WHERE id < 100"""
    found = remote.sql(query)
    CALLS.clear()
    assert found.first()[0] == 10
    assert CALLS == {"slow": 100, "dear": 20}


@pytest.mark.parametrize(
    "condition",
    [
        "strict(id) AND slow(id)",  # the sample has a row that fails
        "moody(id) AND slow(id)",
        "moody(id) AND (slow(id) OR id IN (SELECT 1))",
    ],
)
def test_what_cannot_be_measured_or_moved_stays_as_written(spark, server, condition):
    remote = connect(spark, server.target, condition_sample=SAMPLE)
    CALLS.clear()
    shown = str(remote.explain(f"SELECT id FROM t WHERE {condition}"))
    assert "order measured" not in shown
    first = condition.partition("(")[0]
    assert shown.index(f"1. {first}" if first == "moody" else first) < shown.index("slow")
    if first == "strict":
        assert "could not be measured: " in shown
        assert "not this one" in shown


def test_no_rows_and_streams_keep_the_order_of_the_text(spark, server):
    remote = connect(spark, server.target, condition_sample=SAMPLE)
    shown = str(remote.explain("SELECT id FROM t WHERE dear(id) AND slow(id) AND id < 0"))
    assert "WHERE: conditions run in the order of the text, for no row was left to measure" in shown
    spark.readStream.format("rate").load().createOrReplaceTempView("ticks")
    shown = str(remote.explain("SELECT value FROM ticks WHERE dear(value) AND slow(value)"))
    assert "a stream has no sample" in shown
    assert not CALLS
    spark.catalog.dropTempView("ticks")


@pytest.mark.parametrize("sample", [-1, 1.5, True, "60"])
def test_a_sample_is_a_number_of_rows(spark, server, sample):
    with pytest.raises(InvalidOption, match=f"condition_sample: {sample!r} is not a number of rows"):
        connect(spark, server.target, condition_sample=sample)
