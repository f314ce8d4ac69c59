"""Memory that a client and a server on one host share: its contents, and the offers that the server rejects."""

import os
import random
import resource
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.errors import ProtocolViolation
from remote_udf.messages import encode, read_request
from remote_udf.shared_memory import (
    AREA_BYTES,
    HEADER,
    LEAST_BYTES,
    PAGE,
    SharedMemoryRefused,
    attach,
    offer_memory,
)
from remote_udf.v1 import message_pb2 as pb
from tests.leftovers import mapped
from tests.properties import examples

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd is of Linux")
LIMIT = 64 << 20


@pytest.fixture
def offered():
    memory = offer_memory()
    assert memory is not None
    yield memory
    memory.close()


@pytest.fixture
def ends(offered):
    """Returns the client's end and the server's."""
    server, client = attach(offered.offer, LIMIT), offered.accepted()
    offered.close()
    yield client, server
    client.close()
    server.close()


def parts_of(data, cuts):
    borders = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [pa.py_buffer(data[a:b]) if a % 2 else data[a:b] for a, b in pairwise(borders)]


@pytest.mark.slow
@examples(25)
@given(
    st.lists(
        st.tuples(st.integers(LEAST_BYTES, 5_000_000), st.lists(st.integers(0, 1 << 30), max_size=4), st.booleans()),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_what_one_end_puts_the_other_takes_in_any_order_and_no_place_is_used_twice_meanwhile(messages, rng):
    offered = offer_memory()
    server, client = attach(offered.offer, LIMIT), offered.accepted()
    offered.close()
    for sender, receiver in ((client, server), (server, client)):
        waiting = []
        for number, (size, cuts, read_one) in enumerate(messages):
            data = bytes((number + 1,)) * size
            place = sender.put(parts_of(data, cuts))
            if place is None:
                assert (
                    sum(len(data) + 2 * HEADER for _, data in waiting) + size > AREA_BYTES / 3
                )  # there is no contiguous room for it
                continue
            waiting.append((place, data))
            if read_one:
                place, data = waiting.pop(rng.randrange(len(waiting)))
                assert receiver.take(place) == data
        for place, data in waiting:
            assert receiver.take(place) == data
        assert sender.put([bytes(AREA_BYTES - HEADER)]) is not None, "all of it is free again"
    client.close()
    server.close()


def test_few_bytes_and_bytes_without_room_go_inside_their_message(ends):
    client, server = ends
    small = encode(pb.ExecuteRequest(batch=pb.Batch(rows=1)), [b"x" * (LEAST_BYTES - 1)], client)
    large = encode(pb.ExecuteRequest(batch=pb.Batch(rows=1)), [b"y" * (AREA_BYTES + 1)], client)
    shared = encode(pb.ExecuteRequest(batch=pb.Batch(rows=1)), [b"z" * LEAST_BYTES], client)
    assert (len(small) > LEAST_BYTES, len(large) > AREA_BYTES, len(shared) < 100) == (True, True, True)
    assert [bytes(read_request(message, server).data[:1]) for message in (small, large, shared)] == [b"x", b"y", b"z"]


def test_what_was_taken_does_not_change_with_the_memory(ends):
    client, server = ends
    place = client.put([b"a" * LEAST_BYTES])
    taken = server.take(place)
    assert client.put([b"b" * LEAST_BYTES]).position == place.position
    assert taken == b"a" * LEAST_BYTES


def test_threads_that_put_at_once_get_places_of_their_own(ends):
    client, server = ends
    found = [[] for _ in range(4)]

    def put(number):
        found[number] = [(number, client.put([bytes((number,)) * 100_000])) for _ in range(20)]

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = [each for several in found for each in several if each[1] is not None]
    assert len(places) == 80
    assert all(server.take(place) == bytes((number,)) * 100_000 for number, place in places)


@pytest.mark.parametrize(
    ("position", "size"),
    [
        (0, LEAST_BYTES),  # overlaps the token
        (PAGE - HEADER, LEAST_BYTES),
        (PAGE + 1, LEAST_BYTES),  # not on a page boundary
        (PAGE, AREA_BYTES),  # extends into the other area
        (PAGE + AREA_BYTES, LEAST_BYTES),  # in the server's own area
        (PAGE, -1),
        (-64, LEAST_BYTES),
        (1 << 62, 64),
    ],
)
def test_a_place_that_is_not_the_senders_is_a_violation(ends, position, size):
    _, server = ends
    with pytest.raises(ProtocolViolation, match="shared memory"):
        server.take(pb.SharedData(position=position, bytes=size))


def test_a_place_larger_than_a_message_may_be_is_a_violation(offered):
    server = attach(offered.offer, 1 << 20)
    with pytest.raises(ProtocolViolation, match="at most 1048576 at a time"):
        server.take(pb.SharedData(position=PAGE, bytes=(1 << 20) + 1))
    server.close()


def test_shared_data_without_an_agreement_or_beside_data_is_a_violation(ends):
    client, server = ends
    message = encode(pb.ExecuteRequest(batch=pb.Batch(rows=1)), [b"z" * LEAST_BYTES], client)
    with pytest.raises(ProtocolViolation, match="was not negotiated"):
        read_request(message)
    both = encode(pb.ExecuteRequest(shared=pb.SharedData(position=PAGE, bytes=1)), [b"inside"])
    with pytest.raises(ProtocolViolation, match="in addition to data"):
        read_request(both, server)


# Offers that a caller may make.


def changed(offer, **fields):
    other = pb.SharedMemory()
    other.CopyFrom(offer)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def test_memory_without_the_token_of_another_size_or_that_is_gone_is_refused(offered):
    offer = offered.offer
    for wrong in (
        {"token": bytes(32)}, {"token": b""}, {"token": offer.token + b"x"}, {"bytes": offer.bytes - 4096},
        {"bytes": 1 << 62}, {"process": 0}, {"process": -1}, {"process": 1 << 40}, {"descriptor": -1},
        {"descriptor": 1 << 30},
    ):  # fmt: skip
        with pytest.raises(SharedMemoryRefused):
            attach(changed(offer, **wrong), LIMIT)
    offered.close()
    with pytest.raises(SharedMemoryRefused):
        attach(offer, LIMIT)


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can begin a process of another user")
def test_a_process_of_another_user_cannot_open_the_memory(offered):
    offer = offered.offer
    command = ["head", "-c", "1", f"/proc/{offer.process}/fd/{offer.descriptor}"]
    assert subprocess.run(command, capture_output=True, check=True).stdout
    refused = subprocess.run(command, capture_output=True, check=False, user=65534, group=65534, extra_groups=[])
    assert refused.returncode and not refused.stdout


def test_a_descriptor_of_anything_else_is_not_opened(tmp_path):
    file, (reading, writing) = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR), os.pipe()
    try:
        os.write(file, bytes(3 * PAGE))
        for descriptor in (file, reading, writing, 0):
            offer = pb.SharedMemory(process=os.getpid(), descriptor=descriptor, bytes=3 * PAGE, token=bytes(32))
            with pytest.raises(SharedMemoryRefused, match="no memory of a client"):
                attach(offer, LIMIT)
    finally:
        for descriptor in (file, reading, writing):
            os.close(descriptor)


def test_memory_that_its_owner_could_shrink_under_the_server_is_refused():
    descriptor = os.memfd_create("remote-udf", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 3 * PAGE)
        offer = pb.SharedMemory(process=os.getpid(), descriptor=descriptor, bytes=3 * PAGE, token=bytes(32))
        with pytest.raises(SharedMemoryRefused, match="can shrink"):
            attach(offer, LIMIT)
    finally:
        os.close(descriptor)


def test_half_of_the_descriptors_are_left_for_connections(offered):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The descriptor that is opened next. How many are open already depends on earlier tests.
    free = os.dup(offered.offer.descriptor)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, hard))
        with pytest.raises(SharedMemoryRefused, match="descriptors"):
            attach(offered.offer, LIMIT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_descriptor_stays_open_and_the_memory_is_gone_when_both_ends_are_closed():
    def descriptors():
        return {each.name for each in Path("/proc/self/fd").iterdir()}

    before, had = descriptors(), mapped()
    for _ in range(3):
        offered = offer_memory()
        server, client = attach(offered.offer, LIMIT), offered.accepted()
        offered.close()
        place = client.put([random.Random(7).randbytes(LEAST_BYTES)])
        kept = server.take(place)
        # mmap keeps its own descriptor while it is open
        assert mapped() == had + 2
        server.close()
        client.close()
    assert mapped() == had
    assert len(kept) == LEAST_BYTES
    assert descriptors() - before == set()
