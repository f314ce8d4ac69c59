"""The closing example of FLIP-145, on fewer orders."""

import pytest

from examples import windows


@pytest.fixture(autouse=True)
def orders(spark):
    windows.orders(spark, 600).createOrReplaceTempView("orders")
    yield
    spark.catalog.dropTempView("orders")


def rows(frame):
    return sorted(map(tuple, frame.collect()))


def test_the_top_items_since_midnight_are_those_of_plain_sql(spark, tmp_path):
    found = rows(windows.connected(spark, tmp_path).sql(windows.TOP_ITEMS))
    assert len({row[0] for row in found}) == 144
    assert max(row[1] for row in found) > 50
    assert found == rows(windows.top_items_in_plain_sql(spark))


def test_the_buyers_per_seller_are_those_of_plain_sql(spark, tmp_path):
    found = rows(windows.connected(spark, tmp_path).sql(windows.BUYERS))
    assert len(found) > 144
    assert found == rows(windows.buyers_in_plain_sql(spark))
