"""Batches of a model's service: servers and the service are killed at each step, and each request is in one batch."""

import signal
import threading
import time
from fnmatch import fnmatch

import pyarrow as pa
import pytest

from benchmarks.direct import Client
from tests.chaos.servers import ChaosServer
from tests.waiting import wait_until
from udf_models.testing import Reply, ScriptedService

pytestmark = [pytest.mark.slow, pytest.mark.long]

FUNCTION = "complete_batch_small"
PROMPTS = [f"prompt {number}" for number in range(1_000)]
BOUND_SECONDS = 180.0
"""Only bounds a failure."""
LEASE_SECONDS = 0.5
"""A server that needs longer on a slow machine doubles it."""


def batches(rows):
    """The prompts in messages of this number of rows."""
    return [pa.record_batch([pa.array(PROMPTS[at : at + rows])], ["prompt"]) for at in range(0, len(PROMPTS), rows)]


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
    wait_until(lambda: any(fnmatch(each.path, path) and each.method == method for each in service.requests))


def answered(server, rows=250):
    """Ask in messages of this number of rows until no row is pending."""
    until, client = time.monotonic() + BOUND_SECONDS, Client(server.target)
    values = client.values(FUNCTION, batches(rows))
    while any(value["state"] == "submitted" for value in values):
        assert time.monotonic() < until
        time.sleep(0.1)
        values = client.values(FUNCTION, batches(rows))
    return [value["answer"] for value in values]


class Asking(threading.Thread):
    """A task that asks until all prompts are answered; if its server is lost, it sends them again."""

    def __init__(self, *asked):
        super().__init__(daemon=True)
        self._asked = asked
        self.start()

    def run(self):
        self._answers = answered(*self._asked)

    @property
    def answers(self):
        self.join(BOUND_SECONDS)
        return self._answers


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
        assert asking.answers == PROMPTS
        assert (service.batch_rows, service.resubmitted_rows) == (len(PROMPTS), 0)


def test_a_server_that_was_suspended_creates_no_batch_that_another_has_replaced(started):
    with ScriptedService() as service:
        first, second = started(service), started(service)
        service.script(Reply(hang=True), path="files")
        # One message is one call and one file. While the service has the file, the server writes nothing to the store.
        asking = Asking(first, len(PROMPTS))
        arrived(service, "files", "POST")
        first.signal(signal.SIGSTOP)
        assert answered(second) == PROMPTS
        service.release()
        first.signal(signal.SIGCONT)  # the answer of the service and the end of the lease are there at once
        assert asking.answers == PROMPTS
        assert (service.batch_rows, service.resubmitted_rows) == (len(PROMPTS), 0)


def test_a_service_that_is_started_again_with_its_files_has_its_batches(started, tmp_path):
    with ScriptedService(batch_seconds=3600, folder=tmp_path) as service:
        server = started(service)
        Client(server.target).values(FUNCTION, batches(250))
        url = service.url
    asked = Client(server.target).values(FUNCTION, batches(250))  # nobody answers
    assert {value["state"] for value in asked} == {"submitted"}
    server.kill()
    with ScriptedService(folder=tmp_path, port=int(url.split(":")[2].split("/")[0])) as service:
        server.start()
        assert answered(server) == PROMPTS
        assert (service.batch_rows, service.resubmitted_rows) == (len(PROMPTS), 0)
