"""The demo's input, service and tables; `make demo` itself is run by hand."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from examples.demo import job
from examples.demo.airports import Airports
from examples.demo.everyday import pay_once, share_a_model
from examples.demo.job_input import InputError, read_input
from examples.demo.lookup_service import ANSWER_SECONDS
from examples.demo.services import LookupProcess
from examples.demo.tables import table
from spark_client import connect


@pytest.fixture(scope="module")
def airports():
    return Airports.load()


@pytest.fixture
def file(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def paths(spark, **environment):
    given = read_input(spark, environment)
    return given.chosen, sorted(row.path for row in given.frame.collect())


def test_airports_are_found_by_code_by_place_and_by_words(airports):
    assert airports.by_code(" sfo ").name == "San Francisco International"
    assert airports.by_code("???") is None
    assert airports.nearest(37.62, -122.37).iata == "SFO"
    assert airports.nearest(0.0, 0.0) is None
    assert airports.search("San Francisco").city == "San Francisco"
    assert airports.search("somewhere near nashville, perhaps").city == "Nashville"
    assert airports.search("Xyzzyq") is None


def test_without_an_input_the_airports_of_vega_datasets_are_looked_up(spark):
    given = read_input(spark, {})
    assert (given.chosen, given.is_users) == ("airport codes in column iata", False)
    assert given.frame.count() == len(Airports.load())


def test_a_column_of_airport_codes_comes_first(spark, file):
    text = "town,latitude,longitude,from\nBoston,1,2,SFO\nNashville,3,4,lax\nDallas,5,6,\n"
    chosen, asked = paths(spark, DEMO_INPUT=file("a.csv", text))
    assert chosen == "airport codes in column from"
    assert asked == ["airport?code=SFO", "airport?code=lax"]


def test_coordinates_come_before_names_of_places(spark, file):
    text = "town,Lat,LNG\nBoston,1.5,2\nNashville,,4\n"
    chosen, asked = paths(spark, DEMO_INPUT=file("a.csv", text))
    assert chosen == "coordinates in columns Lat and LNG"
    assert asked == ["airport?latitude=1.5&longitude=2"]


def test_names_of_places_are_quoted(spark, tmp_path):
    pq.write_table(pa.table({"note": ["x", "y"], "the.town": ["San Francisco", "A & B"]}), tmp_path / "a.parquet")
    chosen, asked = paths(spark, DEMO_INPUT=str(tmp_path / "a.parquet"))
    assert chosen == "names of places in column the.town"
    assert asked == ["airport?text=A+%26+B", "airport?text=San+Francisco"]


def test_the_user_may_name_the_column_and_the_number_of_rows(spark, file):
    path = file("a.csv", "code,town\nSFO,Boston\nLAX,Dallas\n")
    assert paths(spark, DEMO_INPUT=path, DEMO_COLUMN="Town", DEMO_ROWS="1")[1] == ["airport?text=Boston"]


@pytest.mark.parametrize(
    ("name", "text", "settings", "message"),
    [
        ("a.csv", "a,b\n1,2\n", {}, "no usable column.*It has a int, b int"),
        ("a.csv", "a,b\nqqqqq,2\n", {}, "no usable column.*It has a string, b int"),
        ("a.csv", "a,b\n", {}, "has no rows"),
        ("a.txt", "SFO", {}, "is neither CSV with a header .* nor Parquet"),
        ("a.parquet", "SFO", {}, "is not Parquet"),
        ("a.csv", "a\nSFO\n", {"DEMO_COLUMN": "b"}, "DEMO_COLUMN=b: .* has no such column; it has a"),
        ("a.csv", "a\n1\n", {"DEMO_COLUMN": "a"}, "DEMO_COLUMN=a: is not text"),
        ("a.csv", "a\nSFO\n", {"DEMO_ROWS": "few"}, "DEMO_ROWS=few: is not a whole number greater than zero"),
    ],
)
def test_an_input_that_is_of_no_use_is_refused_in_one_line(spark, file, name, text, settings, message):
    with pytest.raises(InputError, match=message) as caught:
        read_input(spark, {"DEMO_INPUT": file(name, text), **settings})
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(spark, tmp_path: Path):
    with pytest.raises(InputError, match=r"nope\.csv: there is no such file"):
        read_input(spark, {"DEMO_INPUT": str(tmp_path / "nope.csv")})


async def test_the_service_answers_many_at_once_and_counts_them():
    def get(path):
        with urllib.request.urlopen(service.base_url + path, timeout=60) as response:
            return json.load(response)

    with LookupProcess() as service:
        began = time.monotonic()
        found = get("airport?text=San+Francisco")
        assert time.monotonic() - began >= ANSWER_SECONDS
        assert found["city"] == "San Francisco"
        assert get("seattle?hour=2010-01-01T00") == {"fahrenheit": 39.4}
        for path, status in (("airport?code=", 404), ("airport", 400), ("airport?latitude=x&longitude=1", 400)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(path)
            assert refused.value.code == status
            refused.value.close()
        assert service.statistics().answers == 5
        await asyncio.gather(*(asyncio.to_thread(get, "airport?code=SFO") for _ in range(4)))
        seen = service.statistics()
        assert (seen.answers, 1 <= seen.most_at_once <= 4) == (4, True)


def test_tables_are_aligned_numbers_to_the_right():
    text = table(["name", "n", "x"], [("a", 1, 0.5), ("long", 12_345, None)])
    assert text.splitlines() == [
        "  name       n     x",
        "  ----  ------  ----",
        "  a          1  0.50",
        "  long  12,345     -",
    ]


def test_months_have_remote_aggregates_beside_sparks_own(spark):
    rows = job.months(spark, connect(spark, "local:udf_aggregates")).collect()
    assert [row.month for row in rows] == list(range(1, 13))
    assert sum(row.hours for row in rows) == 8759
    for row in rows:
        assert row.average == pytest.approx(row.avg)
        assert row.highest == sorted(row.highest, reverse=True)
        assert row.median < row.median_at_noon < row.highest[0]


def test_the_moving_mean_is_highest_on_warm_afternoons(spark):
    warmest = job.warmest(spark, connect(spark, "local:udf_aggregates"), 3)
    rows = warmest.select("month", F.hour("at").alias("hour"), "mean").collect()
    assert [row.month for row in rows] == [9, 8, 7]
    assert [row["mean"] for row in rows] == sorted((row["mean"] for row in rows), reverse=True)
    assert all(12 <= row.hour <= 20 for row in rows)


@pytest.mark.long
def test_a_job_that_is_killed_pays_once(spark, tmp_path, monkeypatch):
    with LookupProcess() as service:
        monkeypatch.setenv("UDF_HTTP_BASE_URL", service.base_url)
        paths = read_input(spark, {}).frame.select("path")
        killed, again, once_more = pay_once(connect(spark, plugins=["udf_http"]), paths, service, tmp_path)
    rows = paths.count()
    assert rows / 2 <= killed.requests < rows
    assert (again.rows, once_more.rows, once_more.kept, once_more.requests) == (rows, rows, rows, 0)
    assert rows <= killed.requests + again.requests <= 1.02 * rows


@pytest.mark.long
def test_tasks_share_a_model_in_fewer_calls(spark):
    (separate, shared), same = share_a_model(spark, job.names(spark))
    assert same
    assert separate.rows == shared.rows
    assert shared.calls < separate.calls
