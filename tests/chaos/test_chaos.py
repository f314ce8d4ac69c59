"""The short form of `make chaos`: fewer rows, the same faults."""

import itertools
import random
import socket
import threading

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.in_spark import executor_lost
from tests.chaos.jobs import Tally
from tests.chaos.keyed_jobs import aggregated, processed
from tests.chaos.proxy import Proxy
from tests.chaos.report import as_table, line_of
from tests.chaos.servers import ChaosServer

pytestmark = pytest.mark.long

SCALE = 16


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_no_row_is_lost_doubled_or_wrong(fault):
    tally = fault(SCALE, 7)
    assert tally.good, line_of(fault, tally)
    assert tally.rows > 0


def killed_in_turn(servers, stop):
    for server in itertools.cycle(servers):
        if stop.wait(0.5):
            return
        server.kill()
        server.start()


def reloaded_in_turn(servers, stop):
    rng = random.Random(7)
    for server in itertools.cycle(servers):
        if stop.wait(0.5):
            return
        server.reload(rng.uniform(0.0, 3.0), rng)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("job", [aggregated, processed])
@pytest.mark.parametrize(("faults", "processes"), [(killed_in_turn, 1), (reloaded_in_turn, 2)])
def test_keys_are_whole_though_servers_go(job, faults, processes):
    servers = [ChaosServer("--processes", str(processes)) for _ in range(2)]
    target, stop = ",".join(server.target for server in servers), threading.Event()
    harming = threading.Thread(target=faults, args=(servers, stop))
    harming.start()
    try:
        moved = 0
        while not moved:
            tally = job(target, 20_000, 300)
            assert tally.good, tally
            moved += tally.replays + tally.reconnects
    finally:
        stop.set()
        harming.join()
        for server in servers:
            server.kill()


@pytest.mark.timeout(600)
def test_an_executor_that_is_lost_costs_no_row():
    tally = executor_lost(SCALE, 7)
    assert tally.good, line_of(executor_lost, tally)


def test_the_table_shows_what_went_wrong():
    tally = Tally(10, lost=1, failures=["ValueError: no"])
    assert not tally.good
    assert "| 10 | 1 | 0 | 0 | 0 | 0 | 0.0 | ValueError: no |" in as_table([line_of(executor_lost, tally)])


def test_the_proxy_passes_on_what_it_gets_until_it_is_told_otherwise():
    with socket.create_server(("127.0.0.1", 0)) as behind:
        proxy = Proxy(behind.getsockname()[1])
        try:
            host, _, port = proxy.target.partition(":")
            with socket.create_connection((host, int(port))) as client:
                server, _ = behind.accept()
                with server:
                    client.sendall(b"hello")
                    assert server.recv(10) == b"hello"
                    proxy.swallow = True
                    client.sendall(b"into the dark")
                    server.settimeout(0.3)
                    with pytest.raises(TimeoutError):
                        server.recv(10)
                    proxy.swallow = False
                    server.settimeout(60)
                    assert server.recv(20) == b"into the dark"
                    cutter = threading.Thread(target=proxy.cut)
                    cutter.start()
                    cutter.join(60)
                    assert client.recv(10) == b""
        finally:
            proxy.close()
