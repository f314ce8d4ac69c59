"""Tokens: the permissions of callers, and the audit log."""

import json
import logging
import pickle
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner

import udf_server as udf
from remote_udf.errors import StreamError
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.config import ClientConfig
from spark_client.base.errors import AccessDenied, ServerUnavailable
from spark_client.base.security import Security
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of
from tests.udf_server.secured import answers, plus_one
from tests.waiting import wait_until
from udf_server.commands.cli import main
from udf_server.security import files
from udf_server.security.access import hashed, new_token


@udf.scalar
async def secret_sauce(x: int) -> int:
    return x * 42


@pytest.fixture(autouse=True)
def _look_always(monkeypatch):
    monkeypatch.setattr(files, "LOOK_SECONDS", 0.0)


# Tokens.


def test_a_token_lets_in_and_its_rules_say_what_it_may_call(serve, access, token_file):
    token = new_token()
    rules = access(f'[reporting]\ntoken_sha256 = "{hashed(token)}"\nfunctions = ["plus_*"]\n')
    target = serve(plus_one, secret_sauce, access_file=rules).target
    security = Security(token_file=token_file(token))
    assert answers(target, security) == 2
    assert [spec.name for spec in list_functions(ClientConfig(target, 5.0, security))] == ["plus_one"]
    with pytest.raises(StreamError, match=r"PERMISSION_DENIED: 'reporting' may not call function 'secret_sauce'"):
        answers(target, security, secret_sauce)


@udf.scalar
async def plus_two(x: int) -> int:
    return x + 2


@pytest.mark.parametrize("name", ["plus_two", "plus_one"])
@pytest.mark.parametrize("by", ["stream", "page"])
def test_a_refusal_names_no_function_that_the_caller_may_not_call(serve, access, token_file, by, name):
    token = new_token()
    rules = access(f'[reporting]\ntoken_sha256 = "{hashed(token)}"\nfunctions = ["plus_*"]\n')
    # Of plus_two there is no function, of plus_one no version 2.
    serving = serve(plus_one, secret_sauce, access_file=rules, try_calls=True)
    wanted = {"plus_two": plus_two, "plus_one": udf.scalar(version="2")(plus_one.call)}[name]
    if by == "stream":
        with pytest.raises(StreamError) as raised:
            answers(serving.target, Security(token_file=token_file(token)), wanted)
        said = str(raised.value)
    else:
        body = json.dumps({"function": wanted.spec.key, "arguments": ["1"]}).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{serving.server.metrics_url}/try", body, headers)
        ) as answer:
            said = answer.read().decode()
    assert f"known: {'plus_one' if name == 'plus_two' else '1'}" in said
    assert "secret" not in said


@pytest.mark.parametrize("token", ["", "wrong", "x" * 100_000])
def test_without_the_token_nobody_learns_even_the_names_of_functions(serve, access, monkeypatch, token):
    rules = access(f'[reporting]\ntoken_sha256 = "{hashed(new_token())}"\n')
    serving = serve(plus_one, access_file=rules)
    monkeypatch.setenv("A_TOKEN", token)
    security = Security(token_variable="A_TOKEN") if token else Security()
    # gRPC itself refuses headers beyond 8 to 16 KB.
    expected = ServerUnavailable if len(token) > 1000 else AccessDenied
    with pytest.raises(expected):
        list_functions(ClientConfig(serving.target, 5.0, security))
    if expected is AccessDenied:
        with pytest.raises(StreamError, match="UNAUTHENTICATED"):
            answers(serving.target, security)
        assert serving.metric("udf_streams_rejected_total", code="UNAUTHENTICATED") >= 2


def test_a_token_is_rotated_without_a_restart_and_a_broken_file_locks_nobody_out(serve, access, token_file):
    old, new = new_token(), new_token()
    serving = serve(plus_one, access_file=access(f'[job]\ntoken_sha256 = ["{hashed(old)}"]\n'))
    security = Security(token_file=token_file(old))
    assert answers(serving.target, security) == 2
    access("[job\n")
    assert answers(serving.target, security) == 2
    assert serving.metric("udf_file_reloads_total", files="access", outcome="failed") == 1
    access(f'[job]\ntoken_sha256 = ["{hashed(old)}", "{hashed(new)}"]\n')
    assert answers(serving.target, security) == 2
    token_file(new)
    assert answers(serving.target, security) == 2
    access(f'[job]\ntoken_sha256 = ["{hashed(new)}"]\n')
    token_file(old)
    with pytest.raises(StreamError, match="an unknown bearer token"):
        answers(serving.target, security)
    assert serving.metric("udf_file_reloads_total", files="access", outcome="ok") == 2


def test_a_file_is_watched_where_it_was_although_a_plugin_changes_the_folder(serve, access, token_file, monkeypatch):
    token = new_token()
    rules = access(f'[job]\ntoken_sha256 = "{hashed(token)}"\n')
    monkeypatch.chdir(Path(rules).parent)
    serving = serve(plus_one, access_file=Path(rules).name)
    security = Security(token_file=token_file(token))
    monkeypatch.chdir("/")
    assert answers(serving.target, security) == 2
    access(f'[job]\ntoken_sha256 = "{hashed(new_token())}"\n')
    with pytest.raises(StreamError, match="an unknown bearer token"):
        answers(serving.target, security)


def test_reflection_and_function_lists_are_closed_but_health_answers_everybody(serve, access):
    target = serve(plus_one, access_file=access(f'[job]\ntoken_sha256 = "{hashed("x")}"\n')).target
    with grpc.insecure_channel(target) as channel:
        reflection = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.RpcError) as caught:
            next(reflection(iter([b""]), timeout=10))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10) == b"\x08\x01"


# The audit log.


def test_every_stream_leaves_a_line_of_who_called_what(serve, access, token_file, caplog):
    token = new_token()
    rules = access(f'[reporting]\ntoken_sha256 = "{hashed(token)}"\nfunctions = "plus_*"\n')
    target = serve(plus_one, secret_sauce, access_file=rules).target
    security = Security(token_file=token_file(token))
    with caplog.at_level(logging.INFO, "udf_server.audit"):
        answers(target, security)
        with pytest.raises(StreamError):
            answers(target, security, secret_sauce)
        token_file("another")
        with pytest.raises(AccessDenied):
            list_functions(ClientConfig(target, 5.0, security))
        wait_until(lambda: len([line for line in caplog.records if line.name == "udf_server.audit"]) == 3)
    ended, refused, stranger = (vars(line) for line in caplog.records if line.name == "udf_server.audit")
    assert (ended["caller"], ended["function"], ended["rows_in"], ended["rows_ok"]) == ("reporting", "plus_one@1", 1, 1)
    assert (refused["caller"], refused["function"], refused["code"]) == (
        "reporting", "secret_sauce", "PERMISSION_DENIED",
    )  # fmt: skip
    assert stranger["msg"] == "caller refused"
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in (ended, refused, stranger))


def test_a_stream_that_is_refused_is_logged_once(serve, caplog):
    target = serve(plus_one).target
    with grpc.insecure_channel(target) as channel:
        execute = channel.stream_stream("/remote_udf.v1.UdfService/Execute")
        for request in (b"\xff\xff\xff", pb.ExecuteRequest(open=pb.Open(function="plus_one")).SerializeToString()):
            list(execute(iter([request])))
    refused = [record for record in caplog.records if record.levelno >= logging.WARNING]
    garbage, old = (vars(record) for record in refused)
    assert garbage["msg"] == old["msg"] == "stream refused"
    assert garbage["code"] == "PROTOCOL_VIOLATION" and "not a ExecuteRequest" in garbage["why"]
    assert old["code"] == "UNSUPPORTED_PROTOCOL" and old["function"] == "plus_one"
    assert garbage["peer"].startswith("ipv4:127.0.0.1:")


def test_no_token_is_ever_written_down(serve, access, token_file, caplog, monkeypatch):
    token = "sesame-" + new_token()
    rules = access(f'[job]\ntoken_sha256 = "{hashed(token)}"\n')
    monkeypatch.setenv("THE_TOKEN", token)
    # gRPC's debug records hold objects of its Cython code, and deallocating a record later has crashed the process.
    caplog.set_level(logging.INFO, "grpc")
    with caplog.at_level(logging.DEBUG):
        serving = serve(plus_one, access_file=rules)
        security = Security(token_variable="THE_TOKEN")
        call = replace(call_of(plus_one, serving.target), config=ClientConfig(serving.target, 5.0, security))
        assert answers(serving.target, security) == 2
        monkeypatch.setenv("THE_TOKEN", token + "x")
        with pytest.raises(AccessDenied) as caught:
            list_functions(call.config)
    seen = [caplog.text, str(caught.value), repr(call), repr(serving.server.config), repr(security)]
    with urllib.request.urlopen(serving.server.metrics_url + "/metrics", timeout=10) as page:
        seen.append(page.read().decode())
    seen.append(str(pickle.dumps(call.config)))
    assert not any("sesame" in text for text in seen)


# The client's side.


@pytest.mark.parametrize("target", ["udf.example:50051", "dns:///udf:50051", "10.0.0.7:50051", "[2001:db8::1]:50051"])
def test_a_token_does_not_leave_the_machine_in_the_open(target):
    with pytest.raises(ValueError, match="would be sent unencrypted"):
        ClientConfig(target, security=Security(token_variable="T"))
    for fine in (Security(token_variable="T", tls=True), Security(token_variable="T", allow_plaintext=True)):
        ClientConfig(target, security=fine)


@pytest.mark.parametrize(
    "target", ["localhost:1", "127.0.0.1:1", "[::1]:1", "unix:/x", "dns:///localhost:1", "local:x"]
)
def test_on_this_machine_it_may_travel_without_tls(target):
    ClientConfig(target, security=Security(token_variable="T"))


@pytest.mark.parametrize("security", [Security(token_file="/no/token"), Security(token_variable="NOT_SET")])
def test_a_secret_that_is_not_there_is_named(serve, security):
    with pytest.raises(AccessDenied, match="on this machine"):
        list_functions(ClientConfig(serve(plus_one).target, 1.0, security))


def test_halves_of_a_pair_are_refused():
    with pytest.raises(ValueError, match="belong together"):
        Security(certificate_file="x")
    with pytest.raises(ValueError, match="give only one of them"):
        Security(token_file="x", token_variable="y")


def test_the_command_line_makes_tokens():
    printed = CliRunner().invoke(main, ["token"]).output
    token, hash_ = printed.split("\n")[0].removeprefix("token: "), printed.split('"')[1]
    assert hashed(token) == hash_
    assert len(token) >= 43
