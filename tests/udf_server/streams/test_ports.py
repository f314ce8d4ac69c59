"""Streams that a client opens at the port of their group, and those that it cannot open there."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc import aio

from remote_udf.messages import read_response
from spark_client.base.errors import ServerUnavailable
from spark_client.base.security import Security
from spark_client.executor.stream import connecting, connection
from spark_client.executor.stream.ports import Ports
from tests.ports import free_port
from tests.udf_server.grouped import Client, in_thread, other, own, route_of
from tests.udf_server.secured import answers
from tests.udf_server.talk import batch, finish, opening
from udf_server.security.access import hashed, new_token
from udf_server.security.callers import CallerSettings
from udf_server.streams.routes import name_of_route, write_routes
from udf_server.streams.service import SERVICE_NAME


@pytest.fixture(autouse=True)
def ports(monkeypatch):
    """What this process knows of ports: nothing, before each test."""
    known = Ports()
    for module in (connection, connecting):
        monkeypatch.setattr(module, "process_ports", lambda: known)
    return known


def relayed(server):
    return server.main.metrics.relayed.labels("geo")._value.get()


def warnings(caplog):
    return [line.getMessage() for line in caplog.records if "passes streams of a group on" in line.getMessage()]


async def test_a_stream_is_opened_at_the_port_of_its_group(groups, caplog):
    server = await groups(port=free_port())
    for _ in range(2):
        assert await in_thread(answers, server.target, Security(), other) == 2
        assert await in_thread(answers, server.target, Security(), own) == 0
    assert (relayed(server), warnings(caplog)) == (0, [])


async def test_only_a_client_that_understands_ports_is_told_one(groups):
    server = await groups(port=free_port())
    async with Client(server.target) as client:
        await client.send(opening("other", takes_port=True))
        elsewhere = await client.receive("elsewhere")
        assert (elsewhere.port, elsewhere.route) == (server.port, name_of_route(server.socket))
        assert await client.call.read() is aio.EOF
    async with Client(server.target) as client:
        await client.send(opening("other"))
        await client.receive("opened")
    assert relayed(server) == 1


async def test_a_port_that_cannot_be_reached_is_tried_once_and_its_streams_are_passed_on(groups, caplog):
    server = await groups()
    port = free_port()
    write_routes(server.routes, {"geo": route_of([other], server.socket, port=port)})
    for _ in range(3):
        assert await in_thread(answers, server.target, Security(), other) == 2
    assert relayed(server) == 3
    (warning,) = warnings(caplog)
    assert f"the server at {server.target} passes streams" in warning
    assert f"127.0.0.1:{port} cannot be reached" in warning


@pytest.mark.slow
async def test_a_group_that_is_away_is_not_taken_for_a_port_that_cannot_be_reached(groups, caplog):
    server = await groups(port=free_port())
    await server.geo.stop(0.0)
    with pytest.raises(ServerUnavailable, match="group 'geo' does not answer"):
        await in_thread(answers, server.target, Security(), other)
    before = relayed(server)
    again = server._server([other], socket=server.socket, port=server.port)
    await again.start()
    try:
        assert await in_thread(answers, server.target, Security(), other) == 2
        assert (relayed(server), warnings(caplog)) == (before, [])
    finally:
        await again.stop(0.0)


@pytest.mark.parametrize("renamed", ["geo", "elsewhere"])
async def test_the_process_at_a_port_serves_no_stream_of_another_process(groups, caplog, renamed, tmp_path):
    """Of other code, while its group is being reloaded; or of another server, behind one name."""
    server = await groups(port=free_port())
    mine = name_of_route(server.socket)
    refusals = {"": "UNKNOWN_FUNCTION", "another/geo": "UNKNOWN_FUNCTION", f"{mine}1": "SHUTTING_DOWN"}
    for route, code in refusals.items():
        async with Client(f"127.0.0.1:{server.port}") as client:
            await client.send(opening("other", route=route))
            assert (await client.receive("error")).code == code
    folder = server.socket.parent if renamed == "geo" else tmp_path
    named = folder / "new-0"
    named.symlink_to(server.socket)
    write_routes(server.routes, {"geo": route_of([other], named, port=server.port)})
    assert await in_thread(answers, server.target, Security(), other) == 2
    assert (relayed(server), len(warnings(caplog))) == (1, renamed == "elsewhere")


async def test_a_stream_that_is_passed_on_is_counted_once(groups, access, token_file):
    token = new_token()
    rules = access(f'[etl]\ntoken_sha256 = "{hashed(token)}"\n')
    limited = {"etl": CallerSettings(max_streams=1)}
    server = await groups(port=free_port(), access_file=rules, callers=limited)
    metadata = [("authorization", f"Bearer {token}")]
    async with Client(server.target, metadata=metadata) as first:
        await first.send(opening("other"))
        await first.receive("opened")
        assert (len(server.main.service.open_streams), len(server.geo.service.open_streams)) == (1, 0)
        async with Client(server.target, metadata=metadata) as second:
            assert (await second.receive("error")).code == "OVERLOADED"
    assert relayed(server) == 1


async def test_a_process_that_drains_listens_no_longer_and_finishes_its_streams(groups):
    server = await groups(port=free_port())
    route = name_of_route(server.socket)
    async with Client(f"127.0.0.1:{server.port}") as client:
        await client.send(opening("other", route=route))
        await client.receive("opened")
        stopping = asyncio.create_task(server.geo.stop(60.0))
        assert (await client.receive("progress")).draining
        again = server._server([other], socket=server.socket.with_name("geo-1"), port=server.port)
        await again.start()  # the port is free
        try:
            await client.send(batch(0, 0, [1]), finish())
            assert (await client.receive("finished")).counts.rows_ok == 1
            await stopping
        finally:
            await again.stop(0.0)


async def test_tokens_and_certificates_hold_at_the_port(groups, access, token_file, pki):
    token = new_token()
    certificate, key = pki.issue("server")
    rules = access(f'[etl]\ntoken_sha256 = "{hashed(token)}"\n[adhoc]\ncertificate = "adhoc.example"\n')
    server = await groups(
        port=free_port(), access_file=rules, tls_certificate=certificate, tls_key=key, tls_client_ca=pki.ca
    )
    mine, theirs = pki.issue("adhoc", "adhoc.example"), pki.issue("other", "other.example")
    for security in (
        Security(token_file=token_file(token), ca_file=pki.ca, certificate_file=theirs[0], key_file=theirs[1]),
        Security(ca_file=pki.ca, certificate_file=mine[0], key_file=mine[1]),
    ):
        assert await in_thread(answers, server.target, security, other) == 2
    assert relayed(server) == 0
    files = [Path(name).read_bytes() for name in (pki.ca, *theirs[::-1])]  # noqa: ASYNC240 - small
    claim = [("udf-relayed-certificate-bin", b"adhoc.example"), ("udf-relayed-peer", "ipv4:10.0.0.1:5")]
    async with aio.secure_channel(f"127.0.0.1:{server.port}", grpc.ssl_channel_credentials(*files)) as channel:
        call = channel.stream_stream(f"/{SERVICE_NAME}/Execute")(metadata=claim)
        assert read_response(await call.read()).envelope.error.code == "UNAUTHENTICATED"
        call.cancel()
