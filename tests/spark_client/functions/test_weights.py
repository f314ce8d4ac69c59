"""The version of a name without one, if the servers have weights: shares, stickiness, servers that differ."""

import dataclasses
import logging
import re

import pytest

import udf_server as udf
from remote_udf.errors import ProtocolViolation
from remote_udf.v1 import service_pb2
from spark_client.base.config import ClientConfig
from spark_client.base.notebooks import FunctionList
from spark_client.functions.directory import list_functions


def versioned(version, name="feels"):
    @udf.scalar(name=name, version=version)
    def f(a: int) -> int:
        return a

    return f.spec.to_proto()


class Servers:
    """The servers of a target: each has versions of `feels`, and weights."""

    def __init__(self, *servers):
        self._servers = servers

    def list_functions(self, seconds):
        return [
            service_pb2.ListFunctionsResponse(
                functions=map(versioned, versions), server_version="1", protocol_versions=[1], weights=weights
            )
            for versions, weights in self._servers
        ]


def listed(*servers, session="a"):
    config = dataclasses.replace(ClientConfig("there:1"), session=session)
    return list_functions(config, transport=Servers(*servers))


def chosen(*servers, session="a"):
    return listed(*servers, session=session).find("feels").version


def shares(*servers, sessions=2_000):
    versions = [chosen(*servers, session=f"session {number}") for number in range(sessions)]
    return {version: versions.count(version) / sessions for version in set(versions)}


@pytest.mark.slow
def test_a_version_gets_its_share_of_the_sessions_and_the_highest_other_one_the_rest():
    found = shares((["1", "2", "3"], {"feels@3": 0.05}))
    assert found.keys() == {"2", "3"}
    assert found["3"] == pytest.approx(0.05, abs=0.02)


@pytest.mark.slow
def test_several_versions_get_their_shares():
    found = shares((["1", "2", "3"], {"feels@3": 0.1, "feels@2": 0.3}))
    assert found["3"] == pytest.approx(0.1, abs=0.03)
    assert found["2"] == pytest.approx(0.3, abs=0.04)
    assert found["1"] == pytest.approx(0.6, abs=0.04)


def test_no_session_gets_a_version_of_weight_zero_and_every_one_a_version_of_weight_one():
    assert shares((["1", "2"], {"feels@2": 0.0}), sessions=200) == {"1": 1.0}
    assert shares((["1", "2"], {"feels@1": 1.0}), sessions=200) == {"1": 1.0}


def test_a_session_has_the_same_version_whenever_it_asks():
    server = (["1", "2"], {"feels@2": 0.5})
    for session in map(str, range(20)):
        assert len({chosen(server, session=session) for _ in range(3)}) == 1


def test_functions_are_drawn_independently():
    def versions(session):
        names = [versioned(version, name) for name in ("f", "g") for version in ("1", "2")]
        answer = service_pb2.ListFunctionsResponse(
            functions=names, server_version="1", protocol_versions=[1], weights={"f@2": 0.5, "g@2": 0.5}
        )

        class One:
            def list_functions(self, seconds):
                return [answer]

        functions = list_functions(dataclasses.replace(ClientConfig("x:1"), session=session), transport=One())
        return functions.find("f").version, functions.find("g").version

    assert len({versions(str(number)) for number in range(40)}) == 4


def test_a_version_that_is_named_is_used():
    functions = listed((["1", "2"], {"feels@2": 0.0}))
    assert functions.find("feels@2").version == "2"


def test_of_different_weights_the_smallest_counts_with_a_warning(caplog):
    servers = (["1", "2"], {"feels@2": 0.5}), (["1", "2"], {"feels@2": 0.0}), (["1", "2"], {})
    with caplog.at_level(logging.WARNING):
        assert shares(*servers, sessions=50) == {"1": 1.0}
    assert "different weights of feels@2 (0 %, 50 %, none): the smallest counts, 0 %" in caplog.text


def test_the_share_of_a_version_that_a_server_lacks_goes_to_the_others():
    assert shares((["1", "2"], {"feels@2": 1.0}), (["1"], {}), sessions=50) == {"1": 1.0}


def test_a_weight_that_is_no_share_is_refused():
    with pytest.raises(ProtocolViolation, match="weight nan of feels@2; expected 0 to 1"):
        listed((["1", "2"], {"feels@2": float("nan")}))


def test_the_list_of_functions_says_which_jobs_get_a_version():
    functions = listed((["1", "2", "3"], {"feels@3": 0.0}))
    shown = FunctionList(functions, functions.jobs())
    jobs = [re.split(r"\s{2,}", line)[2] for line in repr(shown).splitlines()]
    assert jobs == ["only jobs that name it", "the other jobs, this one", "0 % of jobs"]
    assert "<th" in shown._repr_html_() and "0 % of jobs" in shown._repr_html_()
    assert "0 % of jobs" in repr(shown[2:])


def test_without_weights_the_list_says_nothing_of_jobs():
    functions = listed((["1", "2"], {}))
    assert functions.find("feels").version == "2"
    assert "job" not in FunctionList(functions, functions.jobs())._repr_html_()
