"""The page of `/metrics`: what it has, how pages of processes are joined, and that scrapes share one."""

import asyncio
import logging
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary
from prometheus_client.parser import text_string_to_metric_families

from tests.udf_server.talk import eventually
from udf_server.http.exposition import SharedPage, joined, page_of

ODD = 'a "b" {version="d",version="e"} \\ e\nf 1.0'


@pytest.fixture
def registry():
    """Metrics of each kind, with and without labels, with a label value that looks like parts of a page."""
    made = CollectorRegistry()
    Counter("rows", "Rows.", ["f", "version"], registry=made).labels(ODD, "1").inc(3)
    Gauge("load", "Load.", registry=made).set(0.123456789123)
    Gauge("unused", "Unused.", ["f"], registry=made)
    Histogram("wait", "Wait.", buckets=(1, 2), registry=made).observe(1.5)
    Summary("size", "Size.", ["f"], registry=made).labels(ODD).observe(7)
    return made


def samples(page):
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_a_page_has_the_metrics_with_series(registry):
    page = page_of(registry)
    assert "unused" not in page
    found = samples(page)
    assert found["rows_total", ("f", ODD), ("version", "1")] == 3
    assert found["load",] == 0.123456789
    assert found["wait_bucket", ("le", "2.0")] == found["wait_count",] == 1
    assert not any(name.endswith("_created") for name, *_ in found)


def test_joined_pages_have_all_samples_with_the_label_of_their_process(registry):
    page = page_of(registry)
    processes = [{"process": "0"}, {"group": "geo", "process": "0"}, {"group": "geo", "process": "1"}]
    found = samples(joined([*((labels, page) for labels in processes), ({"process": "2"}, "")]))
    assert found == {
        (name, *sorted([*labels, *more.items()])): value
        for more in processes
        for (name, *labels), value in samples(page).items()
    }


def test_joined_pages_have_each_metric_once(registry):
    lines = joined([({"process": "0"}, page_of(registry)), ({"process": "1"}, page_of(registry))]).splitlines()
    assert [line for line in lines if line.startswith("# TYPE")] == [
        "# TYPE rows_total counter", "# TYPE load gauge", "# TYPE wait histogram", "# TYPE size summary",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's prometheus")
def test_prometheus_reads_joined_pages(registry):
    page = joined([({"process": "0"}, page_of(registry)), ({"process": "1"}, page_of(registry))])
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_exceeds_the_bytes_is_omitted_and_logged(registry, caplog):
    with caplog.at_level(logging.WARNING):
        page = page_of(registry, most_bytes=300)
    assert len(page) <= 300
    assert set(samples(page)) < set(samples(page_of(registry)))
    assert caplog.records[-1].metrics == [metric.name for metric in registry.collect() if metric.samples and
                                          f"# HELP {metric.name}" not in page]  # fmt: skip


def shared(gather, test):
    async def run(threads):
        await test(SharedPage(gather, threads))

    with ThreadPoolExecutor(2) as threads:
        asyncio.run(run(threads))


class Counted:
    """Writes a page with what was counted, when it may."""

    def __init__(self, may_go_on=True):
        self.count, self.gathers, self.goes_on = 0, 0, threading.Semaphore(100 if may_go_on else 0)

    def __call__(self):
        count, self.gathers = self.count, self.gathers + 1
        assert self.goes_on.acquire(timeout=20)
        return f"{count}"


def test_a_scrape_has_all_that_was_counted_before_it():
    counted = Counted()

    async def test(page):
        for counted.count in range(20):
            assert (await page.get()).text == f"{counted.count}".encode()

    shared(counted, test)


def test_scrapes_that_come_while_a_page_is_gathered_share_the_next_one():
    counted = Counted(may_go_on=False)

    async def test(page):
        first = [asyncio.create_task(page.get()) for _ in range(50)]
        await eventually(lambda: counted.gathers == 1)
        counted.count = 7
        later = [asyncio.create_task(page.get()) for _ in range(50)]
        await asyncio.sleep(0)
        counted.goes_on.release(2)
        assert {(await each).text for each in first} == {b"0"}
        assert {(await each).text for each in later} == {b"7"}
        assert counted.gathers == 2

    shared(counted, test)


def test_scrapes_that_were_given_up_are_not_gathered_for_one_by_one():
    counted = Counted(may_go_on=False)

    async def test(page):
        for _ in range(9):
            with pytest.raises(TimeoutError):
                await page.get(seconds=0.01)
        counted.goes_on.release(3)
        assert (await page.get()).text == b"0"
        assert counted.gathers <= 3

    shared(counted, test)


def test_after_an_error_the_page_is_gathered_again():
    answers = iter([ValueError("broken"), "page"])

    def gather():
        answer = next(answers)
        if isinstance(answer, ValueError):
            raise answer
        return answer

    async def test(page):
        with pytest.raises(ValueError, match="broken"):
            await page.get()
        assert (await page.get()).text == b"page"

    shared(gather, test)
