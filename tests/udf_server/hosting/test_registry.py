"""The registry: names, versions, clashes."""

import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from udf_server.base.errors import FunctionClash
from udf_server.hosting.registry import Registry


def versioned(name, version="1"):
    @udf.scalar(name=name, version=version)
    def f(a: int) -> int:
        return a

    return f


def test_without_a_version_the_highest_is_meant():
    registry = Registry([("p", versioned("f", version)) for version in ("9", "10", "2.5")])
    assert registry.find("f").spec.version == "10"
    assert registry.find("f", "2.5").spec.version == "2.5"


def test_functions_come_by_name_then_version():
    registry = Registry([("p", versioned(*key)) for key in (("g", "1"), ("f", "10"), ("f", "9"))])
    assert [function.spec.key for function in registry] == ["f@9", "f@10", "g@1"]


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(StreamError, match=r"no function 'h' \(known: f, g\)") as raised:
        Registry([("p", versioned("g")), ("p", versioned("f"))]).find("h")
    assert raised.value.code is ErrorCode.UNKNOWN_FUNCTION


def test_an_unknown_version_is_refused_with_the_known_ones():
    with pytest.raises(StreamError, match=r"function 'f' has no version '3' \(known: 1, 2\)") as raised:
        Registry([("p", versioned("f", "2")), ("p", versioned("f", "1"))]).find("f", "3")
    assert raised.value.code is ErrorCode.UNKNOWN_VERSION


def test_two_functions_of_one_name_and_version_clash():
    with pytest.raises(FunctionClash) as raised:
        Registry([("one", versioned("f")), ("two", versioned("f"))])
    text = str(raised.value)
    assert all(part in text for part in ("'f@1'", "plugin 'one'", "plugin 'two'", "test_registry:versioned"))


def test_two_versions_of_one_name_do_not_clash():
    assert len(list(Registry([("one", versioned("f", "1")), ("two", versioned("f", "2"))]))) == 2


def test_an_empty_registry_says_so():
    with pytest.raises(StreamError, match="known: none"):
        Registry([]).find("f")
