"""Metrics of plugins: what they count, where, and which declarations are refused."""

import asyncio
import os
import urllib.request

import prometheus_client.parser
import pytest

import udf_server as udf
from udf_server.plugins import metrics
from udf_server.testing import FunctionEnvironment, metric_value

rides = udf.counter("cab_rides", "Rides.", ["town"])
open_doors = udf.gauge("cab_open_doors", "Doors that are open.")
miles = udf.histogram("cab_miles", "Length of rides.", buckets=[1, 10])


@udf.scalar(version="2")
async def ride(town: str) -> str:
    rides.inc(town=town)
    miles.observe(4)
    await asyncio.to_thread(open_doors.set, 3)
    return town


@udf.scalar
def walk(town: str) -> str:
    rides.inc(0.5, town=town)
    return town


def run(function, values):
    async def in_environment():
        async with FunctionEnvironment() as environment:
            (await environment.run(function, values)).to_pylist()

    asyncio.run(in_environment())


def page_of(serving):
    with urllib.request.urlopen(f"{serving.server.metrics_url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in prometheus_client.parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_metric_counts_for_the_function_that_runs(serve):
    before = {(f, v, t): metric_value("cab_rides_total", function=f, version=v, town=t)
              for f, v, t in [("ride", "2", "Ulm"), ("walk", "1", "Ulm"), ("ride", "2", "Bonn")]}  # fmt: skip
    run(ride, ["Ulm", "Ulm", "Bonn"])
    run(walk, ["Ulm"])
    after = {key: metric_value("cab_rides_total", function=key[0], version=key[1], town=key[2]) for key in before}
    assert {key: after[key] - before[key] for key in before} == {
        ("ride", "2", "Ulm"): 2, ("walk", "1", "Ulm"): 0.5, ("ride", "2", "Bonn"): 1,
    }  # fmt: skip
    page = page_of(serve(ride))
    assert page["cab_rides_total", ("function", "ride"), ("town", "Ulm"), ("version", "2")] >= 2
    assert page["cab_miles_bucket", ("function", "ride"), ("le", "10.0"), ("version", "2")] >= 3
    assert page["process_resident_memory_bytes",] > 0  # what every client of Prometheus has
    assert page["cab_open_doors", ("function", ""), ("version", "")] == 3  # a thread of the author's own


def test_what_is_declared_again_is_the_same_metric():
    again = udf.counter("cab_rides_total", "Rides.", ["town"])
    assert again is rides


def test_series_beyond_the_bound_are_counted_together(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_SERIES", 3)
    keys = udf.counter("cab_keys", "One per key.", ["key"])
    for key in range(10):
        keys.inc(key=key)
    keys.inc(key=0)
    assert metric_value("cab_keys_total", key=0) == 2
    assert metric_value("cab_keys_total", key="other") == 7
    assert metric_value("cab_keys_total") == 11


def test_a_value_that_cannot_be_written_costs_no_scrape(serve):
    paths = udf.counter("cab_paths", "Files.", ["path"])
    paths.inc(path=os.fsdecode(b"a\xff"))
    paths.inc(path="b" * 10_000)
    page = page_of(serve(ride))
    assert {dict(labels)["path"]: count for (name, *labels), count in page.items() if name == "cab_paths_total"} == {
        "a?": 1, "b" * 200: 1,
    }  # fmt: skip


def test_a_call_with_other_labels_names_both():
    with pytest.raises(ValueError, match=r"^metric 'cab_rides': found the labels \['city'\]; it is declared with"):
        rides.inc(city="Ulm")
    with pytest.raises(ValueError, match="found the labels none; it is declared with"):
        rides.inc()


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (lambda: udf.counter("udf_rows", "Rows."), "does not begin with udf_"),
        (lambda: udf.counter("Rows", "Rows."), "lower-case letters"),
        (lambda: udf.gauge("cab_a", "A.", "town"), "expected a list of different names"),
        (lambda: udf.gauge("cab_a", "A.", ["function"]), "underscores, other than function, version, process, le"),
        (lambda: udf.gauge("cab_a", "A.", ["a", "a"]), "expected a list of different names"),
        (lambda: udf.histogram("cab_b", "B.", buckets=[2, 1]), "Buckets not in sorted order"),
        (lambda: udf.gauge("cab_miles_count", "M."), "Duplicated timeseries"),
        (lambda: udf.counter("cab_rides", "Rides."), r"is declared twice, as counter\('Rides.', \['town'\]\) and as"),
    ],
)  # fmt: skip
def test_what_is_declared_wrongly_is_refused(declare, why):
    with pytest.raises(udf.DeclarationError, match=why):
        declare()
