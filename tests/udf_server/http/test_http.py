"""The HTTP side: metrics, liveness, readiness."""

import contextlib
import gc
import gzip
import json
import socket
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import udf_server as udf
from udf_server.base.metric_kinds import BulkHistogram
from udf_server.base.metrics import LATENCY_BUCKETS, ServerMetrics
from udf_server.base.open_files import HTTP_CONNECTIONS
from udf_server.http.server import HttpServer


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@udf.scalar
async def same(a: int) -> int:
    return a


def test_a_server_lives_is_ready_and_shows_its_metrics(serve):
    server = serve(same).server
    assert get(f"{server.metrics_url}/livez") == (200, "ok\n")
    assert get(f"{server.metrics_url}/readyz") == (200, "ok\n")
    status, text = get(f"{server.metrics_url}/metrics")
    names = {family.name for family in text_string_to_metric_families(text)}
    assert status == 200
    assert {"udf_server_info", "udf_server_ready", "udf_rows", "udf_event_loop_lag_seconds"} <= names
    assert "udf_row_duration_seconds" not in names  # nothing was called


def test_scrapes_that_were_given_up_take_no_place_of_others(caplog):
    gathers, goes_on = [], threading.Event()

    def gather():
        gathers.append(len(gathers))
        goes_on.wait(20)
        return "# TYPE a gauge\na 1\n"

    http = HttpServer("127.0.0.1", 0, gather, lambda: True, str)
    try:
        address = http.url.removeprefix("http://").split(":")
        for _ in range(HTTP_CONNECTIONS + 20):
            with socket.create_connection((address[0], int(address[1])), timeout=20) as given_up:
                given_up.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert get(f"{http.url}/livez") == (200, "ok\n")
        goes_on.set()
        assert get(f"{http.url}/metrics") == (200, "# TYPE a gauge\na 1\n")
        assert len(gathers) <= 3  # one at a time, and one for all that came meanwhile
    finally:
        goes_on.set()
        http.close()
    assert caplog.records == []


def test_health_checks_that_come_together_wait_for_each_other():
    goes_on = threading.Event()

    def unready():
        goes_on.wait(20)
        return ""

    http = HttpServer("127.0.0.1", 0, lambda: "# TYPE a gauge\na 1\n", lambda: True, unready)
    host, port = http.url.removeprefix("http://").split(":")
    checks = [socket.create_connection((host, int(port)), timeout=20) for _ in range(8)]
    try:
        for check in checks:
            check.sendall(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert get(f"{http.url}/metrics")[0] == 200  # requests are read in their order
        goes_on.set()
        assert {check.makefile("rb").readline() for check in checks} == {b"HTTP/1.1 200 OK\r\n"}
    finally:
        goes_on.set()
        http.close()
        for check in checks:
            check.close()


def test_a_scrape_may_be_compressed(serve):
    request = urllib.request.Request(f"{serve(same).server.metrics_url}/metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert b"udf_server_ready 1.0\n" in gzip.decompress(answer.read())


def test_a_server_that_stops_is_not_ready(serve):
    serving = serve(same)
    serving.server.service.drain()
    assert get(f"{serving.server.metrics_url}/readyz")[0] == 503
    assert get(f"{serving.server.metrics_url}/livez")[0] == 200


def test_a_loop_that_does_not_turn_is_not_alive(serve):
    server = serve(same).server
    server._upkeep._beat -= 1000
    server._upkeep._task.get_loop().call_soon_threadsafe(server._upkeep._task.cancel)
    while not server._upkeep._task.cancelled():
        threading.Event().wait(0.002)
    server._upkeep._beat = 0.0
    assert get(f"{server.metrics_url}/livez") == (503, "no: its event loop does not run\n")
    assert get(f"{server.metrics_url}/readyz") == (503, "no: its event loop does not run\n")


@pytest.mark.parametrize("path", ["/metric", "/../etc/passwd", "/assets/page.js"])
def test_anything_else_is_not_there(serve, path):
    status, text = get(serve(same).server.metrics_url + path)
    assert (status, text) == (404, "there are /, /metrics, /livez and /readyz\n")


@pytest.mark.parametrize("path", ["/", "/metrics", "/livez", "/readyz", "/catalog.json", "/page.js", "/nothing"])
def test_head_answers_as_get_without_a_body(serve, path):
    url = serve(same).server.metrics_url + path
    request = urllib.request.Request(url, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            head = answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            head = error.code, error.headers["Content-Type"], error.read()
    assert head[0] == get(url)[0]
    assert head[1] is not None
    assert head[2] == b""


def test_it_listens_on_ipv6_too():
    try:
        http = HttpServer("::1", 0, str, lambda: True, str)
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert http.url.startswith("http://[::1]:")
    assert get(f"{http.url}/livez") == (200, "ok\n")
    http.close()
    http.close()


def test_every_metric_has_a_unit_a_description_and_bounded_labels():
    families = list(ServerMetrics().registry.collect())
    assert len(families) > 15
    assert all(family.documentation.endswith(".") for family in families)
    assert all(family.name.startswith("udf_") for family in families)
    labels = {name for family in families for sample in family.samples for name in sample.labels}
    assert labels <= {"function", "version", "outcome", "code", "end", "direction", "files", "output", "reason", "le"}


def test_latencies_reach_past_the_default_deadline():
    assert max(LATENCY_BUCKETS) > 180


def test_a_histogram_counts_in_bulk_what_it_would_count_one_by_one():
    import random

    from prometheus_client import Histogram

    registry = CollectorRegistry()
    one_by_one = Histogram("a", "A.", ["f"], buckets=(0.1, 1.0, 10.0), registry=registry)
    bulk = BulkHistogram("b", "B.", ["f"], (0.1, 1.0, 10.0))
    registry.register(bulk)
    chance = random.Random(3)
    for size in (1, 5, 16, 17, 100):
        values = [chance.choice([0.1, 1.0, chance.uniform(0, 12)]) for _ in range(size)]
        counts = [chance.randint(1, 4) for _ in range(size)]
        bulk.observe(("x",), values, counts)
        for value, count in zip(values, counts, strict=True):
            for _ in range(count):
                one_by_one.labels("x").observe(value)
    for bound in ("0.1", "1.0", "10.0", "+Inf"):
        short = {"0.1": "0.1", "1.0": "1", "10.0": "10"}.get(bound, bound)
        expected = registry.get_sample_value("a_bucket", {"f": "x", "le": bound})
        assert registry.get_sample_value("b_bucket", {"f": "x", "le": short}) == expected
    assert registry.get_sample_value("b_sum", {"f": "x"}) == pytest.approx(
        registry.get_sample_value("a_sum", {"f": "x"})
    )


def test_observing_nothing_is_nothing():
    bulk = BulkHistogram("b", "B.", ["f"], (0.1,))
    bulk.observe(("x",), [], [])
    assert json.dumps([sample for family in bulk.collect() for sample in family.samples]) == "[]"


def test_a_server_that_stops_closes_connections_that_were_just_accepted():
    clients = []
    for _ in range(60):
        http = HttpServer("127.0.0.1", 0, str, lambda: True, str)
        address = http.url.removeprefix("http://").split(":")
        clients += [socket.create_connection((address[0], int(address[1])), timeout=20) for _ in range(3)]
        http.close()
    gc.collect()  # a connection that was left to it is a warning, which fails the test
    for client in clients:
        with client:
            assert not _answer(client)


def _answer(client):
    with contextlib.suppress(ConnectionResetError):
        return client.recv(1)
