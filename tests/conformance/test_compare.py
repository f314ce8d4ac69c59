"""Comparison of rows, and of the tables that changelogs produce."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.conformance.compare import difference, end_state


def test_unordered_rows_are_compared_with_how_often_they_come():
    assert difference([[1], [2], [1]], [(2,), (1,), (1,)], ordered=False) is None
    found = difference([[1], [1], [2]], [(1,), (2,), (2,)], ordered=False)
    assert found == "1 rows are missing: [(1,)]; 1 are too many: [(2,)]"


def test_ordered_rows_in_another_order_are_reported():
    assert difference([[1], [2]], [(1,), (2,)], ordered=True) is None
    assert "the same rows in another order" in (difference([[1], [2]], [(2,), (1,)], ordered=True) or "")


def test_a_changelog_with_retractions_needs_no_key():
    changes = [("+I", [1, 11]), ("+I", [2, 12]), ("-U", [1, 11]), ("+U", [1, 14]), ("-D", [2, 12])]
    assert end_state(changes) == [[1, 14]]


def test_an_upsert_changelog_goes_by_its_key():
    changes = [("+I", ["a", 1]), ("+I", ["b", 2]), ("+U", ["a", 3]), ("-D", ["b", None]), ("-D", ["c", None])]
    assert end_state(changes, key=[0]) == [["a", 3]]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30))
def test_what_was_added_and_not_taken_away_is_left(steps):
    held: Counter[int] = Counter()
    changes = []
    for adds, value in steps:
        if adds or not held[value]:
            held[value] += 1
            changes.append(("+I", [value]))
        else:
            held[value] -= 1
            changes.append(("-D", [value]))
    assert Counter(value for (value,) in end_state(changes)) == +held
