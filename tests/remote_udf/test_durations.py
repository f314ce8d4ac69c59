"""Lengths of time in options."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.durations import format_seconds, parse_seconds
from remote_udf.errors import InvalidOption


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2 s", 2.0),
        ("100ms", 0.1),
        ("1.5 min", 90.0),
        (" 3 Hours ", 10_800.0),
        ("1d", 86_400.0),
        ("250 µs", 0.00025),
        ("7 ns", 7e-9),
        (timedelta(minutes=3), 180.0),
    ],
)
def test_flink_and_spark_spellings_are_read(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["2", 2, 2.0, None, "s", "-1 s", "1 s 2 s", "one s", "1e3 s", "9" * 400 + " s"])
def test_a_bare_number_and_nonsense_are_refused(text):
    with pytest.raises(InvalidOption, match="is not a duration"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250 ms"), (180.0, "3 min"), (7200.0, "2 h"), (86_400.0, "1 d"), (1.5, "1500 ms"), (0.00002, "20 us")],
)
def test_durations_are_written_in_the_largest_unit_that_fits(seconds, text):
    assert format_seconds(seconds) == text


@given(st.floats(1e-9, 1e12))
def test_what_is_written_reads_back_as_nearly_the_same(seconds):
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=1e-8, abs=1e-9)


@given(st.floats(1e-9, 1e12))
def test_writing_again_changes_nothing(seconds):
    text = format_seconds(seconds)
    assert format_seconds(parse_seconds(text)) == text
