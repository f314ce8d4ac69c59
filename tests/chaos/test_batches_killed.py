"""Batches of a model's service: servers and the service are killed at each step, and each request is in one batch."""

import contextlib
import signal
import sqlite3
import threading
import time
from fnmatch import fnmatch

import pyarrow as pa
import pytest

from benchmarks.direct import Client
from tests.chaos.servers import ChaosServer
from udf_models.testing import Reply, ScriptedService

pytestmark = [pytest.mark.slow, pytest.mark.long]

FUNCTION = "complete_batch_small"
PROMPTS = [f"prompt {number}" for number in range(1_000)]
BATCHES = [pa.record_batch([pa.array(PROMPTS[at : at + 250])], ["prompt"]) for at in range(0, 1_000, 250)]
LEASE_SECONDS = 0.5


@pytest.fixture
def started(tmp_path):
    """`started(service)` starts a server whose ids are in the same folder each time."""
    servers = []

    def start(service):
        file = tmp_path / "models.toml"
        file.write_text(
            f'[models.small]\nurl = "{service.url}"\nmodel = "m"\nfunctions = ["complete_batch"]\n'
            f'batch = {{ poll-interval = "50 ms", lease = "{LEASE_SECONDS} s" }}\n'
            'options = { max-queue-delay = "200 ms", initial-delay = "10 ms" }\n'
        )
        servers.append(
            ChaosServer(
                "--cache-url", f"file://{tmp_path}/kept", "--processes", "1", plugin="udf_models",
                UDF_MODELS_FILE=str(file),
            )
        )  # fmt: skip
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def arrived(service, path, method):
    until = time.monotonic() + 30
    while not any(fnmatch(each.path, path) and each.method == method for each in service.requests):
        assert time.monotonic() < until
        time.sleep(0.01)


def answered(server):
    """Ask until no row is pending."""
    until, client = time.monotonic() + 60, Client(server.target)
    values = client.values(FUNCTION, BATCHES)
    while any(value["state"] == "submitted" for value in values):
        assert time.monotonic() < until
        time.sleep(0.1)
        values = client.values(FUNCTION, BATCHES)
    return [value["answer"] for value in values]


class Asking(threading.Thread):
    """A task that asks until all prompts are answered; if its server is lost, it sends them again."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self._server = server
        self.start()

    def run(self):
        self.answers = answered(self._server)


@pytest.mark.parametrize(
    ("path", "method", "reply"),
    [
        ("files", "POST", Reply(hang=True)),  # the intent is kept, the file is not uploaded
        ("batches", "POST", Reply(hang=True)),  # the file is uploaded, the batch is not created
        ("batches", "POST", Reply(drip_seconds=1.0)),  # the batch is created, its id is not kept
        ("files/*/content", "GET", Reply(drip_seconds=0.0001)),  # a part of the results is kept
    ],
)  # fmt: skip
def test_a_server_that_is_killed_at_a_step_submits_nothing_twice(started, path, method, reply):
    with ScriptedService() as service:
        server = started(service)
        service.script(reply, path=path, method=method)
        asking = Asking(server)
        arrived(service, path, method)
        server.kill()
        server.start()
        asking.join(90)
        assert asking.answers == PROMPTS
        assert (service.batch_rows, service.resubmitted_rows) == (len(PROMPTS), 0)


def suspend(server, file):
    """Suspend a server, but not while it writes to the file: SQLite's lock would hold up all others."""
    for _ in range(1_000):
        server.signal(signal.SIGSTOP)
        try:
            with contextlib.closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
                db.execute("ROLLBACK")
            return
        except sqlite3.OperationalError:
            server.signal(signal.SIGCONT)
            time.sleep(0.001)
    raise AssertionError("the server always writes")


def test_a_server_that_was_suspended_creates_no_batch_that_another_has_replaced(started, tmp_path):
    with ScriptedService() as service:
        first, second = started(service), started(service)
        service.script(Reply(drip_seconds=0.005), path="files")  # about half a second
        asking = Asking(first)
        arrived(service, "files", "POST")
        suspend(first, tmp_path / "kept" / "keyvalue.sqlite3")
        assert answered(second) == PROMPTS
        first.signal(signal.SIGCONT)
        asking.join(90)
        assert asking.answers == PROMPTS
        assert (service.batch_rows, service.resubmitted_rows) == (len(PROMPTS), 0)


def test_a_service_that_is_started_again_with_its_files_has_its_batches(started, tmp_path):
    with ScriptedService(batch_seconds=3600, folder=tmp_path) as service:
        server = started(service)
        Client(server.target).values(FUNCTION, BATCHES)
        url = service.url
    asked = Client(server.target).values(FUNCTION, BATCHES)  # nobody answers
    assert {value["state"] for value in asked} == {"submitted"}
    server.kill()
    with ScriptedService(folder=tmp_path, port=int(url.split(":")[2].split("/")[0])) as service:
        server.start()
        assert answered(server) == PROMPTS
        assert (service.batch_rows, service.resubmitted_rows) == (len(PROMPTS), 0)
