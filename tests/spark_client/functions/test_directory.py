"""Requests for the functions of a server, and the search for a function in the answer."""

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.v1 import function_pb2, service_pb2
from spark_client import PlanError, RemoteAggregate, RemoteFunction, RemoteSession
from spark_client.base.config import ClientConfig
from spark_client.base.errors import NotARemoteUdfServer, ServerUnavailable, UnknownFunction
from spark_client.base.transport import TransportLost
from spark_client.executor.stream.transport import NoGrpcServer
from spark_client.functions.directory import RETRY_SECONDS, Functions, list_functions
from spark_client.testing import LocalTransport
from tests.spark_client.scripted import Clock

CONFIG = ClientConfig("there:1", connect_seconds=5.0)


def answer(protocols=(1,), functions=()):
    return service_pb2.ListFunctionsResponse(functions=functions, server_version="9.9", protocol_versions=protocols)


class Answers:
    """A server that returns these answers in turn, and then repeats the last one; an exception is raised."""

    def __init__(self, clock, *answers, seconds=0.0):
        self._clock, self._answers, self._seconds = clock, list(answers), seconds
        self.asked = []

    def list_functions(self, seconds):
        self.asked.append(seconds)
        self._clock.now += self._seconds
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, list) else [answer]


def listed(clock, transport):
    return list_functions(CONFIG, transport=transport, clock=clock, sleep=clock.sleep)


def test_functions_come_as_the_server_has_them():
    @udf.scalar
    def one(x: int) -> int:
        return x

    @udf.scalar(version="2", deterministic=False)
    def two(x: str) -> str:
        return x

    with LocalTransport(one, two) as transport:
        assert list(list_functions(CONFIG, transport=transport)) == [one.spec, two.spec]


def test_a_server_that_is_starting_is_waited_for():
    clock = Clock()
    transport = Answers(clock, TransportLost("not yet"), TransportLost("not yet"), answer())
    assert not listed(clock, transport)
    assert clock.sleeps == [RETRY_SECONDS] * 2


def test_a_server_that_does_not_come_is_an_error_in_time():
    clock = Clock()
    with pytest.raises(ServerUnavailable, match="no remote-udf server at there:1 within 5 s: nobody"):
        listed(clock, Answers(clock, TransportLost("nobody")))
    assert 4.9 - RETRY_SECONDS <= clock.now - 1000.0 <= 5.0 + 1e-6


def test_an_attempt_may_take_what_is_left_of_the_time():
    clock = Clock()
    transport = Answers(clock, TransportLost("slow"), seconds=2.0)
    with pytest.raises(ServerUnavailable):
        listed(clock, transport)
    assert transport.asked == pytest.approx([5.0, 2.9, 0.8])


def test_what_is_no_server_at_all_is_not_waited_for():
    clock = Clock()
    with pytest.raises(NotARemoteUdfServer, match="what answers at there:1 is not a gRPC server: SSH"):
        listed(clock, Answers(clock, NoGrpcServer("SSH")))
    assert clock.sleeps == []


def test_a_server_of_another_protocol_is_refused_with_both_sides():
    clock = Clock()
    with pytest.raises(NotARemoteUdfServer, match=r"there:1 \(version 9.9\) speaks protocol \[2, 3\], this client 1"):
        listed(clock, Answers(clock, answer(protocols=(2, 3))))


def test_a_server_of_several_protocols_is_taken_if_ours_is_among_them():
    clock = Clock()
    assert not listed(clock, Answers(clock, answer(protocols=(1, 2))))


@pytest.mark.parametrize(
    "newer", [{"kind": 99}, {"nulls": 99}, {"execution": 99}, {"process": {"tables": [{"traits": ["WITH_SUGAR"]}]}},
              {"process": {"changelog_mode": {"kinds": [9]}}}, {"result": b"a schema of tomorrow"}],
)  # fmt: skip
def test_a_function_of_a_newer_server_does_not_hide_the_others(newer, caplog):
    (known,) = specs("known@1")
    message = known.to_proto()
    message.name = "tomorrow"
    for name, value in newer.items():
        if isinstance(value, dict):
            getattr(message, name).MergeFrom(function_pb2.ProcessSignature(**value))
        else:
            setattr(message, name, value)
    clock = Clock()
    assert list(listed(clock, Answers(clock, answer(functions=[message, known.to_proto()])))) == [known]
    assert "function tomorrow@1 is not available" in caplog.text


def specs(*names):
    def make(name, version):
        @udf.scalar(name=name, version=version)
        def function(x: int) -> int:
            return x

        return function.spec

    return [make(*name.split("@")) for name in names]


@pytest.mark.parametrize(
    ("name", "version"), [("geocode", "10"), ("geocode@2", "2"), ("geocode@10", "10"), ("other", "1")]
)
def test_a_name_means_the_highest_version_unless_it_says_one(name, version):
    assert Functions(specs("geocode@2", "geocode@10", "geocode@9", "other@1")).find(name).version == version


def found_on(*servers):
    """The functions of a target whose servers offer these."""
    clock = Clock()
    answers = [answer(functions=[spec.to_proto() for spec in specs(*names)]) for names in servers]
    return listed(clock, Answers(clock, answers))


@pytest.mark.parametrize(
    ("servers", "version"),
    [
        ([["feels@1", "feels@2"], ["feels@1"]], "1"),
        ([["feels@1"], ["feels@1", "feels@2"], ["feels@1", "feels@2"]], "1"),
        ([["feels@1", "feels@2"], ["feels@2", "feels@3"]], "2"),
        ([["feels@1"], ["feels@2"]], "2"),
        ([["feels@1"], []], "1"),
    ],
)
def test_in_a_rolling_update_a_name_means_the_highest_version_that_all_servers_have(servers, version):
    assert found_on(*servers).find("feels").version == version


def test_in_a_rolling_update_every_version_can_be_asked_for():
    functions = found_on(["feels@1", "feels@2"], ["feels@1"])
    assert functions.find("feels@2").version == "2"
    assert [spec.key for spec in functions] == ["feels@1", "feels@2"]


def test_a_version_whose_types_differ_between_servers_is_not_one_that_all_have():
    @udf.scalar(name="feels", version="2")
    def other(x: str) -> str:
        return x

    clock = Clock()
    first = answer(functions=[spec.to_proto() for spec in specs("feels@1", "feels@2")])
    second = answer(functions=[specs("feels@1")[0].to_proto(), other.spec.to_proto()])
    assert listed(clock, Answers(clock, [first, second])).find("feels").version == "1"


def test_servers_of_another_protocol_are_passed_over_if_one_speaks_ours():
    clock = Clock()
    old = answer(protocols=(2,), functions=[specs("feels@9")[0].to_proto()])
    new = answer(functions=[specs("feels@1")[0].to_proto()])
    assert [spec.key for spec in listed(clock, Answers(clock, [old, new]))] == ["feels@1"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("geo", r"no function 'geo' \(known: geocode, other\)"),
        ("geocode@3", r"function 'geocode' has no version '3' \(known: 2, 10\)"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(name, message):
    with pytest.raises(UnknownFunction, match=message):
        Functions(specs("other@1", "geocode@10", "geocode@2")).find(name)


@pytest.mark.parametrize("name", ["", "@", "a@", "@1", "a@b@c"])
def test_a_malformed_name_is_an_unknown_function(name):
    with pytest.raises(UnknownFunction):
        Functions(specs("other@1")).find(name)


def test_a_server_without_functions_says_so():
    with pytest.raises(UnknownFunction, match="known: none"):
        Functions([]).find("geocode")


@pytest.mark.parametrize(("kind", "expected"), [("scalar", RemoteFunction), ("aggregate", RemoteAggregate)])
def test_a_function_is_of_the_kind_that_was_asked_for(kind: str, expected: type):
    specs = [FunctionSpec(each, "1", FunctionKind(each), (), pa.int64(), 1) for each in ("scalar", "aggregate")]
    session = RemoteSession(None, ClientConfig("nowhere:1"), Functions(specs))
    other = "scalar" if kind == "aggregate" else "aggregate"
    assert isinstance(session.function(kind, kind=kind, timeout="2 s"), expected)
    with pytest.raises(PlanError, match=f"function {other}@1 is of kind {other}, not {kind}"):
        session.function(other, kind=kind)
