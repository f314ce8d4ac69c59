"""The errors that client and server share."""

import copy
import inspect
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf import errors
from remote_udf.errors import ErrorCode, ErrorKind, RemoteUdfError, StreamError, capped


def test_the_tree_in_the_docstring_lists_every_class():
    classes = {
        name for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, RemoteUdfError) and value.__module__ == errors.__name__
    }  # fmt: skip
    drawn = set(re.findall(r"^[ │├└─]*([A-Z]\w+)", errors.__doc__, re.MULTILINE))
    assert classes <= drawn


def test_every_class_says_whose_fault_it_is():
    undocumented = [
        name for name in errors.__all__ if inspect.isclass(getattr(errors, name)) and not getattr(errors, name).__doc__
    ]
    assert undocumented == []


def test_codes_are_their_own_text():
    assert all(code.value == code.name == str(code) for code in ErrorCode)


def test_a_code_of_a_newer_server_is_kept_as_it_is():
    code = ErrorCode("TEAPOT_2")
    assert (code.value, code.name, str(code), repr(code)) == ("TEAPOT_2",) * 3 + ("<ErrorCode.TEAPOT_2: 'TEAPOT_2'>",)
    assert code == ErrorCode("TEAPOT_2") == pickle.loads(pickle.dumps(code)) == copy.deepcopy(code)
    assert len({code, ErrorCode("TEAPOT_2"), ErrorCode.TIMEOUT, pickle.loads(pickle.dumps(ErrorCode.TIMEOUT))}) == 2
    assert code not in list(ErrorCode)


def test_a_stream_error_shows_code_and_message():
    error = StreamError(ErrorKind.WORKER, ErrorCode.OVERLOADED, "no room", retryable=True, retry_after=2.0)
    assert str(error) == "OVERLOADED: no room"


@pytest.mark.parametrize("name", ["InvalidOption", "UnsupportedType"])
def test_errors_of_a_callers_making_are_also_builtin_ones(name):
    assert issubclass(getattr(errors, name), (ValueError, TypeError))


@given(st.text(max_size=100))
def test_short_texts_are_left_alone(text):
    assert capped(text, 100) == text


@given(st.text(st.characters(codec="ascii"), min_size=31, max_size=200))
def test_long_texts_keep_both_ends_and_name_the_cut(text):
    short = capped(text, 30)
    assert short.startswith(text[:10])
    assert short.endswith(text[-20:])
    assert f"{len(text) - 30} characters cut" in short
