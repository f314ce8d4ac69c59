"""A caller that fills the server, because it does not read, does not stop other callers."""

import asyncio
import random
import struct
from pathlib import Path

import pytest

import udf_server as udf
from remote_udf.arrow import write_schema
from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb
from tests.fuzz.http2 import Peer
from tests.spark_client.scripted import X
from tests.udf_server.security.test_callers import callers, results
from tests.udf_server.talk import batch, eventually
from udf_server.runners.room import OWNERS_PART, Room, Rooms

__all__ = ["callers"]

LIMIT = 4 << 20
ROWS, VALUE = 300, 20_000


@udf.scalar(timeout="30 s")
async def wide(x: int) -> str:
    await asyncio.sleep(0)
    return f"{x:09}" + "x" * (VALUE - 9)


def framed(message):
    return struct.pack(">BI", 0, len(message)) + message


async def test_callers_that_read_go_on_while_another_one_has_filled_the_server(serve, callers):
    path, security = callers("etl", "adhoc")
    serving = await asyncio.to_thread(serve, wide, access_file=path, max_server_bytes=LIMIT)
    token = await asyncio.to_thread(Path(security["etl"].token_file).read_text)
    opening = encode(pb.ExecuteRequest(open=pb.Open(protocol_version=1, function="wide", arguments=write_schema(X))))
    admission = serving.server.service.admission
    port = int(serving.target.rpartition(":")[2])
    async with Peer(port, [("authorization", f"Bearer {token}")], reads="nothing", window=1_000) as peer:
        while admission.bytes < LIMIT:
            stream = peer.open()
            await peer.send(stream, framed(opening))
            await peer.send(stream, framed(batch(0, 0, range(ROWS))))
            await asyncio.sleep(0.02)
        # Its rows take more than its part of the server.
        found = await asyncio.to_thread(results, serving.target, security["adhoc"], list(range(ROWS)), wide, chunk=50)
        assert found == {row: f"{row:09}" + "x" * (VALUE - 9) for row in range(ROWS)}
        assert admission.bytes >= LIMIT
    await eventually(lambda: not admission.bytes)
    assert not admission.rooms._owned


@pytest.mark.slow
async def test_a_message_that_is_not_read_counts_although_its_stream_has_ended(serve):
    serving = await asyncio.to_thread(serve, wide, idle_seconds=1)
    opening = encode(pb.ExecuteRequest(open=pb.Open(protocol_version=1, function="wide", arguments=write_schema(X))))
    admission, service = serving.server.service.admission, serving.server.service
    async with Peer(int(serving.target.rpartition(":")[2]), reads="nothing", window=1_000) as peer:
        for _ in range(3):
            stream = peer.open()
            await peer.send(stream, framed(opening))
            await peer.send(stream, framed(batch(0, 0, range(50))))
        await eventually(lambda: len(service.open_streams) == 3)
        await eventually(lambda: not service.streams)
        assert admission.bytes >= 3 * VALUE
    await eventually(lambda: not admission.bytes and not service.open_streams)


@pytest.mark.parametrize("seed", range(20))
def test_owners_hold_the_limit_and_their_parts_and_all_that_wait_are_woken(seed):
    draw, limit, most = random.Random(seed), 1_000, 60
    rooms = Rooms(limit)
    streams = [Room(300, rooms, owner=f"owner {number % 5}") for number in range(20)]
    sent, waiting = {room: [] for room in streams}, set()
    for _ in range(3_000):
        room = draw.choice(streams)
        owned = sum(sum(sent[each]) for each in streams if each.owner == room.owner)
        if draw.random() < 0.6:
            if room not in waiting and room.when_free(lambda room=room: waiting.discard(room)):
                # A stream without results may always have one.
                assert not sent[room] or rooms.held < limit or owned * OWNERS_PART < limit
                sent[room].append(draw.randrange(1, most))
                room.take(sent[room][-1])
            elif room not in waiting:
                assert sent[room]
                waiting.add(room)
        elif sent[room]:
            room.give_back(sent[room].pop(draw.randrange(len(sent[room]))))
            if rooms.full and not rooms.has_part(room.owner):
                assert room.owner not in {each.owner for each in waiting}
        assert rooms.held == sum(map(sum, sent.values()))
        if not any(sent[each] for each in streams if each.owner == room.owner):
            assert not room.full
    for room in streams:
        for size in sent[room]:
            room.give_back(size)
    assert not waiting
    assert not rooms._owned
