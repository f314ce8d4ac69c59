"""FunctionSpec: the description of a function that client and server share."""

import dataclasses
import pickle

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, StreamError
from remote_udf.functions import Execution, FunctionKind, FunctionSpec, NullCall, Parameter
from remote_udf.v1 import function_pb2 as pb
from tests.remote_udf.strategies import types

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)


def spec(*parameters, required=None, variadic=False, **changes):
    columns = tuple(Parameter(name, type_) for name, type_ in parameters)
    required = len(columns) if required is None else required
    return FunctionSpec("f", "1", FunctionKind.SCALAR, columns, pa.int64(), required, variadic, **changes)


@st.composite
def specs(draw):
    parameters = draw(st.lists(st.builds(Parameter, names, types), max_size=3))
    return FunctionSpec(
        name=draw(names), version=draw(st.sampled_from(["1", "2.0", "1.10"])), kind=FunctionKind.SCALAR,
        parameters=tuple(parameters), result=draw(types), required_parameters=draw(st.integers(0, len(parameters))),
        variadic=draw(st.booleans()), description=draw(st.text(max_size=9)), deterministic=draw(st.booleans()),
        nulls=draw(st.sampled_from(NullCall)), execution=draw(st.sampled_from(Execution)),
        options=draw(st.dictionaries(names, st.text(max_size=5), max_size=2)),
    )  # fmt: skip


@given(specs())
def test_specs_survive_the_wire(original):
    message = pb.FunctionSpec.FromString(original.to_proto().SerializeToString())
    assert FunctionSpec.from_proto(message) == original


@given(specs())
def test_the_fingerprint_survives_the_wire_and_pickling(original):
    message = pb.FunctionSpec.FromString(original.to_proto().SerializeToString())
    copies = FunctionSpec.from_proto(message), pickle.loads(pickle.dumps(original))
    assert {copy.fingerprint for copy in copies} == {original.fingerprint, message.fingerprint}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "g"}, {"version": "2"}, {"result": pa.int32()}, {"parameters": (Parameter("a", pa.int32()),)},
        {"required_parameters": 0}, {"variadic": True}, {"nulls": NullCall.SKIP},
    ],
)  # fmt: skip
def test_what_changes_legal_calls_or_results_changes_the_fingerprint(change):
    one = spec(("a", pa.int64()))
    assert dataclasses.replace(one, **change).fingerprint != one.fingerprint


@pytest.mark.parametrize(
    "change", [{"description": "other"}, {"options": {"timeout": "1 s"}}, {"execution": Execution.VECTORIZED}]
)
def test_what_callers_need_not_know_leaves_the_fingerprint(change):
    one = spec(("a", pa.int64()))
    assert dataclasses.replace(one, **change).fingerprint == one.fingerprint


def test_the_signature_shows_defaults_and_variadic_parameters():
    assert spec(("a", pa.int64()), ("b", pa.string()), required=1).signature == "f(a bigint, b string = ...) -> bigint"
    assert spec(("a", pa.int64()), required=0, variadic=True).signature == "f(*a bigint) -> bigint"


@pytest.mark.parametrize(
    ("function", "count", "wanted"),
    [
        (spec(("a", pa.int64())), 0, "takes 1 arguments, got 0"),
        (spec(("a", pa.int64())), 2, "takes 1 arguments, got 2"),
        (spec(("a", pa.int64()), ("b", pa.int64()), required=1), 3, "takes 1 to 2 arguments, got 3"),
        (spec(("a", pa.int64()), ("b", pa.int64()), required=1, variadic=True), 0, "takes at least 1 arguments, got 0"),
        (spec(), 1, "takes 0 arguments, got 1"),
    ],
)
def test_a_wrong_number_of_arguments_is_refused_with_the_signature(function, count, wanted):
    with pytest.raises(StreamError, match=wanted) as caught:
        function.check_count(count)
    assert (caught.value.code, caught.value.kind) == (ErrorCode.ARGUMENT_COUNT, ErrorKind.PROTOCOL)
    assert function.signature in caught.value.message


def test_arguments_are_checked_against_their_own_parameter():
    function = spec(("a", pa.int64()), ("rest", pa.string()), required=1, variadic=True)
    assert function.check_arguments([pa.int8(), pa.string(), pa.null()]) == [pa.int64(), pa.string(), pa.string()]


def test_a_wrong_type_names_parameter_expected_and_found():
    with pytest.raises(StreamError, match="function f@1, parameter 'b': expected string, found bigint") as caught:
        spec(("a", pa.int64()), ("b", pa.string())).check_arguments([pa.int64(), pa.int64()])
    assert caught.value.code is ErrorCode.ARGUMENT_TYPE


def test_schemas_that_cannot_be_read_are_a_violation():
    message = spec().to_proto()
    message.result = b"nonsense"
    with pytest.raises(ProtocolViolation):
        FunctionSpec.from_proto(message)
