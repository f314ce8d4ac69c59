"""Hostile requests to the HTTP port: it answers 4xx, or closes, and health checks always succeed."""

import json
import logging
import os
import random
import socket
import threading
import urllib.request
from contextlib import ExitStack

import pytest

import udf_server as udf
from tests.waiting import wait_until
from udf_server.base.open_files import HTTP_CONNECTIONS
from udf_server.http import server as http_module

HEALTH = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@udf.scalar
async def half(x: float) -> float:
    return x / 2


@udf.scalar
async def whole(x: int) -> int:
    return x


@pytest.fixture
def port(serve):
    return int(serve(half, whole, try_calls=True).server.metrics_url.rpartition(":")[2])


def connected(port):
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    client.settimeout(20)
    return client


def sent(port, data):
    """Returns the status of the answer to these bytes; 0 if the connection was closed without one."""
    with connected(port) as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        except OSError:
            return 0
    return int(answer.split()[1]) if answer else 0


def a_call(body, *headers):
    return b"\r\n".join(
        (b"POST /try HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", *headers, b"", body)
    )


def sized(body):
    return a_call(body, b"Content-Length: %d" % len(body))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (HEALTH, 200),
        (HEALTH.replace(b"GET", b"HEAD"), 200),
        (b"GET http://localhost/livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 200),
        (b"GET http://[/livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (a_call(b"{}", "Content-Length: ²".encode()), 400),
        (a_call(b"{}", "Content-Length: ²".encode("latin-1")), 400),
        (a_call(b"{}", b"Content-Length: -2"), 400),
        (a_call(b"{}", b"Content-Length: 0x2"), 400),
        (a_call(b"{}", b"Content-Length: 2", b"Content-Length: 3"), 400),
        (a_call(b"{}", b"Content-Length: " + b"9" * 4_400), 400),
        (a_call(b" " * 70_000, b"Content-Length: 70000"), 413),
        (sized(rb'{"function": "half", "arguments": ["\ud800"]}'), 400),
        (sized(rb'{"function": "\udfff", "arguments": ["1"]}'), 400),
        (sized(b'{"function": "whole", "arguments": ["%s"]}' % (b"9" * 400)), 400),
        (sized(b'{"function": "half", "arguments": [%s]}' % (b"9" * 400)), 400),
        (sized(b'{"function": "half", "arguments": [%s]}' % (b"9" * 5_000)), 400),
        (sized(b'"\xff"'), 400),
        (a_call(b"", b"Origin: http://[", b"Content-Length: 0"), 400),
        (a_call(b"", b"Origin: http://localhost", b"Content-Length: 0").replace(b": localhost", b": [", 1), 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 300_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"", 0),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else None,
)
def test_what_is_wrong_is_the_clients_fault(port, caplog, request_, status):
    with caplog.at_level(logging.ERROR, "udf_server.http.server"):
        assert sent(port, request_) == status
    assert not caplog.records


PIECES = (
    b"GET", b"POST", b"HEAD", b"OPTIONS", b" ", b"/", b"*", b"/try", b"/metrics", b"/livez", b"/catalog.json",
    b"/page.js", b"?name[]=udf_rows_total", b"%2e%2e", b"%ff", b" HTTP/1.1", b" HTTP/1.0", b" HTTP/9.9", b"\r\n",
    b"\r\n\r\n", b"\n",
    b"Host: localhost", b"Host: [::1", b"Content-Length: ", b"2", b"-1", b"Transfer-Encoding: chunked", b"0\r\n\r\n",
    b"Expect: 100-continue", b"Content-Type: application/json", b"Authorization: Basic ", b"Authorization: Bearer ",
    b"Origin: http://[", b"Accept: text/plain; version=9.9.9; q=x", b"Accept-Encoding: gzip", b'{"function": "half", ',
    b'"arguments": ["1"]}', rb'"\ud800"', b"9" * 400, b"NaN", b"\x00", b"\xff", b"x" * 9_000,
)  # fmt: skip


def test_odd_requests_never_make_the_server_fail(port, caplog):
    """Half of them are whole calls in which one byte was changed, or a piece put in."""
    seed = random.randrange(1 << 32) if os.environ.get("REMOTE_UDF_SEED") == "random" else 11
    print("seed", seed)
    rng = random.Random(seed)
    good = [HEALTH, sized(b'{"function": "half", "arguments": ["1"]}'), HEALTH.replace(b"livez", b"metrics")]
    with caplog.at_level(logging.ERROR, "udf_server.http.server"):
        for _ in range(400):
            if rng.random() < 0.5:
                data = b"".join(rng.choices(PIECES, k=rng.randrange(1, 25)))
            else:
                data = bytearray(rng.choice(good))
                place = rng.randrange(len(data))
                data[place : place + rng.randrange(2)] = rng.choice((bytes([rng.randrange(256)]), rng.choice(PIECES)))
            status = sent(port, bytes(data))
            assert status in (0, 200) or 400 <= status < 500 or status in (501, 505), (status, bytes(data))
        assert not caplog.records
    assert sent(port, HEALTH) == 200


def test_silent_and_slow_clients_keep_nobody_waiting_and_take_no_threads(port):
    threads = threading.active_count()
    with ExitStack() as stack:
        for number in range(3 * HTTP_CONNECTIONS):
            client = stack.enter_context(connected(port))
            client.send(b"GET /metrics HTTP/1.1\r\nHost: loc"[: number % 30])
        for _ in range(5):
            assert sent(port, HEALTH) == 200
        # Those for the answers to /livez are made by them.
        assert threading.active_count() <= threads + 5


def test_a_client_that_never_ends_its_request_is_left(port, monkeypatch):
    monkeypatch.setattr(http_module, "REQUEST_SECONDS", 0.2)
    with connected(port) as client:
        client.send(b"GET /livez HTTP/1.1\r\n")
        assert client.recv(100) == b""


def test_calls_that_take_long_leave_the_rest_alone(serve):
    release = threading.Event()

    @udf.scalar
    def waits(x: int) -> int:
        release.wait(60)
        return x

    url = serve(waits, try_calls=True).server.metrics_url
    port = int(url.rpartition(":")[2])
    call = sized(json.dumps({"function": "waits", "arguments": ["1"]}).encode())
    statuses = []
    callers = [threading.Thread(target=lambda: statuses.append(sent(port, call))) for _ in range(30)]
    for caller in callers:
        caller.start()
    try:
        wait_until(lambda: len(statuses) >= 22)
        assert statuses == [503] * 22
        for path in ("/livez", "/readyz", "/metrics", "/"):
            with urllib.request.urlopen(url + path, timeout=20) as answer:
                assert answer.status == 200
    finally:
        release.set()
        for caller in callers:
            caller.join()
    assert statuses.count(200) == 8
