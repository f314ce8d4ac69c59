"""Keys that authors compute for whole batches may have any type of Arrow: equal values have equal keys, others not."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from udf_server.cache.keys import RowKeys

TEXTS = st.lists(st.none() | st.sampled_from(["", "a", "b", "ä", "too long for a view"]), min_size=1, max_size=8)
STORED = {
    "plain": lambda text: text,
    "dictionary": pc.dictionary_encode,
    "large": lambda text: text.cast(pa.large_string()),
    "view": lambda text: text.cast(pa.string_view()),
    "large binary": lambda text: text.cast(pa.large_binary()),
    "runs": pc.run_end_encode,
    "python": lambda text: text.to_pylist(),
    "struct": lambda text: pa.StructArray.from_arrays([text.dictionary_encode()], ["text"]),
    "list": lambda text: pa.ListArray.from_arrays(range(len(text) + 1), text.dictionary_encode()),
    "fixed list": lambda text: pa.FixedSizeListArray.from_arrays(text, 1),
}
UNKEYED = {"runs", "fixed list"}
"""Rows with such keys are called as without a cache."""


@pytest.mark.parametrize("stored", STORED)
@given(TEXTS, TEXTS)
def test_keys_are_equal_if_the_authors_values_are_however_they_are_stored(stored, one, two):
    @udf.scalar(vectorized=True, cache_key=STORED[stored])
    def f(text: pa.StringArray) -> pa.StringArray:
        return text

    keys = RowKeys(f, [pa.string()], None, "")
    batches = [(text, keys.of([pa.array(text, pa.string())], len(text))) for text in (one, two)]
    rows = [pair for text, found in batches for pair in zip(text, found, strict=True)]
    if stored in UNKEYED:
        assert {key for _, key in rows} == {None}
        return
    assert None not in {key for _, key in rows}
    assert len({key for _, key in rows}) == len({text for text, _ in rows}) == len(set(rows))
