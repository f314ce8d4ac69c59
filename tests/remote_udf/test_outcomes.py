"""Errors of rows on the wire."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.errors import TRACEBACK_LIMIT, ErrorCode, ProtocolViolation
from remote_udf.outcomes import ERROR_SCHEMA, MESSAGE_LIMIT, RowError, read_errors, write_errors

row_errors = st.builds(
    RowError,
    st.sampled_from(ErrorCode) | st.just(ErrorCode("OF_A_NEWER_SERVER")),
    st.text(max_size=50),
    st.integers(0, 2**31 - 1),
    st.booleans(),
    st.text(max_size=50),
)


@given(st.dictionaries(st.integers(0, 2**62), row_errors))
def test_errors_read_back_as_they_were_written(errors):
    assert read_errors(write_errors(errors)) == errors


@given(st.dictionaries(st.integers(0, 100), row_errors))
def test_errors_are_written_by_row_ascending(errors):
    assert list(read_errors(write_errors(errors))) == sorted(errors)


def test_long_messages_and_tracebacks_are_cut():
    error = read_errors(write_errors({0: RowError(ErrorCode.TIMEOUT, "m" * 99_999, 1, traceback="t" * 99_999)}))[0]
    assert len(error.message) < MESSAGE_LIMIT + 100
    assert len(error.traceback) < TRACEBACK_LIMIT + 100


def test_lone_surrogates_arrive_escaped():
    error = read_errors(write_errors({0: RowError(ErrorCode.FUNCTION_ERROR, "a\ud800", 1, traceback="\udfff")}))[0]
    assert (error.message, error.traceback) == ("a\\ud800", "\\udfff")


def _written(code="TIMEOUT", row=0):
    columns = [[row], [code], [""], [1], [False], [""]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, ERROR_SCHEMA, strict=True)]
    return (1).to_bytes(8, "little") + pa.RecordBatch.from_arrays(arrays, schema=ERROR_SCHEMA).serialize().to_pybytes()


@pytest.mark.parametrize("code", ["", "teapot", "TEA POT", "T" * 65, "TEAPOT\n"])
def test_a_malformed_code_is_a_violation(code):
    with pytest.raises(ProtocolViolation, match="an error code of a result is malformed"):
        read_errors(_written(code=code))


@pytest.mark.parametrize("hole", [{"code": None}, {"row": None}])
def test_a_null_where_none_may_be_is_a_violation(hole):
    with pytest.raises(ProtocolViolation):
        read_errors(_written(**hole))


@given(st.binary(max_size=300))
def test_random_bytes_are_a_violation(data):
    with pytest.raises(ProtocolViolation):
        read_errors(data)


@given(st.data())
def test_mutated_errors_are_a_violation_or_errors(data):
    good = bytearray(write_errors({3: RowError(ErrorCode.TIMEOUT, "late", 2, True, "trace")}))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read_errors(bytes(good))
    except ProtocolViolation:
        return
    assert all(isinstance(error, RowError) for error in found.values())
