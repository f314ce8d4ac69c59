"""Servers that are late: what others have taken over from them, they no longer do. Their clock is the test's."""

import asyncio
import functools
import math
import socket
import threading

import pytest
from yarl import URL

import udf_server as udf
from tests.waiting import wait_until
from udf_models.batches.asking import Batches
from udf_models.batches.collecting import Collector
from udf_models.batches.functions import KEY_BYTES
from udf_models.batches.records import SUBMITTED, BatchRecords, Row, RowState, Submission, SubmissionState
from udf_models.batches.service import BatchService, Uncertain
from udf_models.batches.settings import BatchSettings
from udf_models.batches.submitting import Request, Submitter
from udf_models.client import ModelClient
from udf_models.declaring import messages
from udf_models.models import Model
from udf_models.testing import Reply
from udf_server.stores.opening import KeyValueStores

LEASE = 300.0
CONTEXT = udf.BatchContext("complete_batch_small", "1", [], 1, math.inf)


class World:
    """Servers of one store, and the time that all of them read."""

    def __init__(self, url, store):
        self.now = 1_000_000.0
        self._url, self.store = url, store
        self._clients = []

    def client(self, url, **settings):
        self._clients.append(ModelClient(Model("small", url, "m", batch=BatchSettings(**settings))))
        return self._clients[-1]

    def server(self, lease=LEASE):
        """A function `ask` of a new server, from prompts to their outcomes."""
        client, records = self.client(self._url, lease=lease), BatchRecords(self.store)
        submitter = Submitter(client, records, wall=lambda: self.now)
        batches = Batches(records, submitter, Collector(client, records, wall=lambda: self.now))

        async def ask(*prompts):
            asked = {
                prompt.encode().ljust(KEY_BYTES): Request(functools.partial(messages, prompt, ""), len(prompt))
                for prompt in prompts
            }
            return list((await batches.ask(asked, CONTEXT)).values())

        return ask

    async def close(self):
        for client in self._clients:
            await client.close()


@pytest.fixture
async def world(service, tmp_path):
    opened = await KeyValueStores(f"file://{tmp_path}/kept").open("complete_batch_small@1")
    world = World(URL(service.url), opened.store)
    yield world
    await world.close()
    await opened.close()


def answered(text):
    return Row(RowState.ANSWER, text)


async def arrived(service, path):
    await asyncio.to_thread(wait_until, lambda: any(each.path == path for each in service.requests))


async def test_a_server_whose_lease_ended_while_it_uploaded_creates_no_batch(world, service):
    first, second = world.server(), world.server()
    service.script(Reply(hang=True), path="files")
    asking = asyncio.create_task(first("one", "two"))
    await arrived(service, "files")
    world.now += 2 * LEASE
    assert await second("two", "one") == [SUBMITTED, SUBMITTED]
    service.release()
    assert await asking == [SUBMITTED, SUBMITTED]
    assert (service.batch_rows, service.resubmitted_rows) == (2, 0)
    world.now += LEASE
    assert await first("one", "two") == [answered("one"), answered("two")]


async def test_a_server_whose_lease_ends_while_it_connects_creates_no_batch(world, service, monkeypatch):
    late = threading.Event()

    def resolved(*args, **options):
        late.set()
        return found(*args, **options)

    found = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    client = world.client(URL(service.url).with_host("localhost"))
    with pytest.raises(Uncertain, match="its lease has ended"):
        await BatchService(client).create("file-1", "submission", "24h", late.is_set)
    assert late.is_set()
    assert service.requests == []


async def test_a_lease_that_is_too_short_for_the_service_is_doubled_until_it_is_not(world, service):
    service.latency = 0.1
    ask = world.server(lease=0.01)
    outcomes = [SUBMITTED]
    while outcomes == [SUBMITTED]:
        outcomes = await ask("one")
        world.now += LEASE
    assert outcomes == [answered("one")]
    assert (service.batch_rows, service.resubmitted_rows) == (1, 0)


async def test_results_are_read_by_one_server_as_long_as_its_lease_lasts(world, service):
    first, second = world.server(), world.server()
    await first("one")
    world.now += LEASE
    service.script(Reply(hang=True), path="files/file-2/content", method="GET")
    asking = asyncio.create_task(first("one"))
    await arrived(service, "files/file-2/content")
    world.now += LEASE / 2
    assert await second("one") == [SUBMITTED]
    service.release()
    assert await asking == await second("one") == [answered("one")]
    assert sum(each.path == "files/file-2/content" for each in service.requests) == 1


async def test_a_record_that_another_server_changes_at_once_is_not_taken_for_ones_own(world):
    other = BatchRecords(world.store)

    class Slow:
        """The store of a server that is suspended between a change and its reading."""

        compare_and_set = world.store.compare_and_set

        async def get(self, keys):
            (kept,) = (await other.submissions(["one"])).values()
            await other.change(kept, state=SubmissionState.ABANDONED)
            return await world.store.get(keys)

    kept = await other.begin(Submission("one", SubmissionState.NEW, 0.0, 0.0))
    assert await BatchRecords(Slow()).change(kept, until=1.0) is None
