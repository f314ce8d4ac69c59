"""Names as Spark compares and quotes them."""

import pytest

from spark_client.base.identifiers import Identifiers, are_plain, quoted, texts_of

EITHER = Identifiers(case_sensitive=False)
EXACT = Identifiers(case_sensitive=True)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a", "A", True),
        ("straße", "STRAẞE", True),
        ("straße", "strasse", False),
        ("k", "\N{KELVIN SIGN}", True),
        ("a", "b", False),
    ],
)
def test_names_that_differ_in_case_are_one_unless_the_session_is_case_sensitive(one, other, same):
    assert EITHER.same(one, other) is same
    assert not EXACT.same(one, other)
    assert EXACT.same(one, one)


def test_names_that_are_repeated_are_found_by_their_keys():
    assert EITHER.repeated(["a", "b", "A", "c", "C"]) == ["a", "c"]
    assert EXACT.repeated(["a", "b", "A", "b"]) == ["b"]


@pytest.mark.parametrize("name", ["x.y", "x`y", "*", "a b", ""])
def test_a_name_that_spark_would_read_as_something_else_is_written_in_backticks(name):
    assert not are_plain(["plain", name])
    assert texts_of(name) == [quoted(name)]


def test_a_backtick_is_written_twice():
    assert quoted("x`y") == "`x``y`"
    assert texts_of("plain_1") == ["plain_1", "`plain_1`"]
