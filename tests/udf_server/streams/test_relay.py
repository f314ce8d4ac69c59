"""Streams for functions of another group: what the process at the main address passes on, in both directions."""

import asyncio
import contextlib
import json
import logging
from pathlib import Path

import grpc
import pytest
from grpc import aio

from remote_udf.errors import StreamError
from remote_udf.messages import read_response
from remote_udf.v1 import message_pb2 as pb
from remote_udf.v1 import service_pb2
from spark_client.base.config import ClientConfig
from spark_client.base.security import Security
from spark_client.functions.directory import list_functions
from tests.udf_server.grouped import CANCELLED, STARTED, Client, in_thread, newer, other, own, route_of
from tests.udf_server.secured import answers
from tests.udf_server.talk import batch, eventually, finish, opening
from udf_server.base.errors import FunctionClash
from udf_server.security.access import hashed, new_token
from udf_server.streams.routes import functions_of, write_routes
from udf_server.streams.service import SERVICE_NAME


async def test_functions_of_all_groups_are_found_and_called_at_one_address(groups):
    server = await groups()
    found = await in_thread(list_functions, ClientConfig(server.target, 5.0))
    assert sorted(spec.key for spec in found) == ["other@1", "own@1", "own@2", "waits@1"]
    assert [await in_thread(answers, server.target, Security(), each) for each in (own, other, newer)] == [0, 2, -1]
    assert server.main.metrics.relayed.labels("geo")._value.get() == 2


async def test_without_a_version_the_highest_one_of_all_groups_is_called(groups):
    server = await groups()
    async with Client(server.target) as client:
        await client.send(opening("own"))
        assert (await client.receive("opened")).version == "2"
        await client.send(finish())
        await client.receive("finished")
        assert await client.call.code() is grpc.StatusCode.OK


async def test_what_no_group_has_is_refused_with_the_names_of_all(groups):
    server = await groups()
    async with Client(server.target) as client:
        await client.send(opening("missing"))
        error = await client.receive("error")
    assert (error.code, error.message) == ("UNKNOWN_FUNCTION", "no function 'missing' (known: other, own, waits)")


async def test_a_group_that_is_away_is_unavailable_and_answers_once_it_is_back(groups):
    server = await groups()
    await server.geo.stop(0.0)
    async with Client(server.target) as client:
        await client.send(opening("other"))
        with pytest.raises(aio.AioRpcError, match="group 'geo' does not answer") as refused:
            await client.call.read()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await in_thread(answers, server.target, Security(), own) == 0
    again = server._server([other], socket=server.socket)
    await again.start()
    try:
        assert await in_thread(answers, server.target, Security(), other) == 2
    finally:
        await again.stop(0.0)


@pytest.mark.slow
async def test_a_client_that_leaves_or_runs_out_of_time_cancels_the_call_in_the_group(groups):
    server = await groups()
    for timeout, code in ((None, grpc.StatusCode.CANCELLED), (1.0, grpc.StatusCode.DEADLINE_EXCEEDED)):
        STARTED.clear()
        CANCELLED.clear()
        async with Client(server.target, timeout=timeout) as client:
            await client.send(opening("waits"))
            await client.receive("opened")
            await client.send(batch(0, 0, [1]))
            await asyncio.wait_for(STARTED.wait(), 20)
            if timeout is None:
                client.call.cancel()
            with contextlib.suppress(asyncio.CancelledError, aio.AioRpcError):
                while await client.call.read() is not aio.EOF:
                    pass
            assert await client.call.code() is code
            await asyncio.wait_for(CANCELLED.wait(), 20)
        await eventually(lambda: server.main.service.streams == server.geo.service.streams == 0)


@pytest.mark.slow
async def test_what_a_group_does_not_read_stops_the_client(groups):
    """Neither process keeps messages for the other: 200 MB are never all on their way."""
    server = await groups(max_stream_bytes=70_000)
    async with Client(server.target) as client:
        await client.send(opening("waits"))
        await client.receive("opened")

        async def send_all():
            for number in range(100):
                await client.send(batch(number, number * 250_000, range(250_000)))

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(send_all(), 2)


async def test_a_stream_is_asked_to_leave_by_its_group_and_both_processes_wait_for_its_end(groups):
    server = await groups()
    async with Client(server.target) as client:
        await client.send(opening("other"))
        await client.receive("opened")
        await client.send(batch(0, 0, [1]))
        assert (await client.receive("result")).rows == 1
        stopping = [asyncio.create_task(each.stop(60.0)) for each in (server.main, server.geo)]
        assert (await client.receive("progress")).draining
        assert not any(each.done() for each in stopping)
        await client.send(finish())
        assert (await client.receive("finished")).counts.rows_ok == 1
        await asyncio.wait_for(asyncio.gather(*stopping), 20)


async def test_progress_of_a_session_is_that_of_all_groups(groups):
    server = await groups()
    async with aio.insecure_channel(server.target) as channel:
        for function in ("own", "other"):
            async with Client(server.target) as client:
                context = pb.CallContext(session="a-session")
                await client.send(opening(function, version="1", context=context))
                await client.receive("opened")
                await client.send(batch(0, 0, [1, 2, 3]), finish())
                await client.receive("finished")
        ask = channel.unary_unary(f"/{SERVICE_NAME}/GetProgress")

        async def progress():
            request = service_pb2.GetProgressRequest(session="a-session").SerializeToString()
            return service_pb2.GetProgressResponse.FromString(await ask(request))

        found = await progress()
        assert (found.counts.rows_ok, found.partial, found.HasField("load")) == (6, False, True)
        await server.geo.stop(0.0)
        found = await progress()
        assert (found.counts.rows_ok, found.partial) == (3, True)


async def test_one_file_of_access_rules_holds_in_all_groups(groups, access, token_file, caplog):
    token, theirs = new_token(), new_token()
    rules = (
        f'[etl]\ntoken_sha256 = "{hashed(token)}"\n[adhoc]\ntoken_sha256 = "{hashed(theirs)}"\nfunctions = ["own"]\n'
    )
    server = await groups(access_file=access(rules))
    with caplog.at_level(logging.INFO, "udf_server.audit"):
        assert await in_thread(answers, server.target, Security(token_file=token_file(token)), other) == 2
        await eventually(lambda: any(line.message == "stream ended" for line in caplog.records))
    (ended,) = [line for line in caplog.records if line.message == "stream ended"]
    assert (ended.caller, ended.peer.partition(":")[0]) == ("etl", "ipv4")
    assert token not in json.dumps([vars(line) for line in caplog.records], default=str)
    stranger = Security(token_file=token_file(theirs))
    with pytest.raises(StreamError, match="PERMISSION_DENIED: 'adhoc' may not call function 'other'"):
        await in_thread(answers, server.target, stranger, other)
    found = await in_thread(list_functions, ClientConfig(server.target, 5.0, stranger))
    assert sorted(spec.key for spec in found) == ["own@1", "own@2"]
    # Who is unknown is refused before any message is read: a write could fail, and gRPC would then lose the answer.
    async with Client(server.target) as client:
        assert (await client.receive("error")).code == "UNAUTHENTICATED"


async def test_a_certificate_is_who_calls_a_group_and_nobody_can_say_to_be_another(groups, pki, access):
    certificate, key = pki.issue("server")
    rules = access('[etl]\ncertificate = "etl.example"\n[adhoc]\ncertificate = "adhoc.example"\nfunctions = ["own"]\n')
    server = await groups(tls_certificate=certificate, tls_key=key, tls_client_ca=pki.ca, access_file=rules)
    mine, theirs = pki.issue("etl", "etl.example"), pki.issue("adhoc", "adhoc.example")
    etl = Security(ca_file=pki.ca, certificate_file=mine[0], key_file=mine[1])
    assert await in_thread(answers, server.target, etl, other) == 2
    credentials = grpc.ssl_channel_credentials(*[Path(name).read_bytes() for name in (pki.ca, *theirs[::-1])])  # noqa: ASYNC240 - small
    claims = (("udf-relayed-certificate-bin", b"etl.example"), ("udf-relayed-peer", "ipv4:10.0.0.1:5"))
    for function in ("own", "other"):
        async with aio.secure_channel(server.target, credentials) as channel:
            call = channel.stream_stream(f"/{SERVICE_NAME}/Execute")(metadata=claims)
            await call.write(opening(function, version="1"))
            kind = read_response(await call.read()).envelope.WhichOneof("response")
            assert kind == ("opened" if function == "own" else "error")
            call.cancel()


@pytest.mark.slow
async def test_a_client_that_sends_no_message_is_refused(groups):
    server = await groups(idle_seconds=1.0)
    async with Client(server.target) as client:
        error = await client.receive("error")
    assert (error.code, error.retryable) == ("IDLE", True)


async def test_a_group_that_comes_later_is_found_without_a_restart(groups):
    server = await groups()

    async def answer():
        """What `other` answers, or the code of its refusal."""
        try:
            return await in_thread(answers, server.target, Security(), other)
        except StreamError as error:
            return error.code

    async def becomes(expected):
        async with asyncio.timeout(30):  # the file is checked every second
            while await answer() != expected:  # noqa: ASYNC110 - a file has no notification
                await asyncio.sleep(0.05)

    write_routes(server.routes, {})
    await becomes("UNKNOWN_FUNCTION")
    write_routes(server.routes, {"geo": route_of([other], server.socket)})
    await becomes(2)


async def test_a_process_that_was_replaced_is_left_once_its_last_stream_has_ended(groups, monkeypatch):
    channels, connect = {}, aio.insecure_channel

    def recorded(target, *options):
        channels[target] = connect(target, *options)
        return channels[target]

    monkeypatch.setattr(aio, "insecure_channel", recorded)
    server = await groups()
    old, new = (f"unix:{server.socket}", f"unix:{server.socket}-new")
    successor = server._server([other], socket=server.socket.with_name(f"{server.socket.name}-new"))
    await successor.start()
    try:
        async with Client(server.target) as client:
            await client.send(opening("other"))
            await client.receive("opened")
            write_routes(server.routes, {"geo": route_of([other], new.removeprefix("unix:"))})
            assert await in_thread(answers, server.target, Security(), other) == 2
            assert channels[old].get_state() is grpc.ChannelConnectivity.READY
            await client.send(batch(0, 0, [1]))
            assert (await client.receive("result")).rows == 1
            await client.send(finish())
            await client.receive("finished")
        await eventually(lambda: channels[old].get_state() is grpc.ChannelConnectivity.SHUTDOWN)
        assert channels[new].get_state() is grpc.ChannelConnectivity.READY
    finally:
        await successor.stop(0.0)


def test_a_function_in_two_groups_is_an_error_that_names_both():
    with pytest.raises(FunctionClash, match=r"function 'other@1' is in group 'geo' and in group 'models'"):
        functions_of({"geo": route_of([other]), "models": route_of([own, other])})
