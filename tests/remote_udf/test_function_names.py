"""Names and versions of functions, as users write them."""

import pytest

from remote_udf.function_names import split_name, version_key


@pytest.mark.parametrize("text", ["geocode", "_f", "f2"])
def test_a_name_alone_has_no_version(text):
    assert split_name(text) == (text, "")


def test_a_version_follows_the_at_sign():
    assert split_name("geocode@1.10") == ("geocode", "1.10")


@pytest.mark.parametrize("text", ["", "2f", "a b", "a-b", "f@", "f@x", "f@1.", "f@1@2", "é"])
def test_other_texts_are_no_names(text):
    with pytest.raises(ValueError, match="is not a function name"):
        split_name(text)


def test_versions_are_ordered_by_number():
    assert sorted(["1.10", "1.9", "2", "1"], key=version_key) == ["1", "1.9", "1.10", "2"]
