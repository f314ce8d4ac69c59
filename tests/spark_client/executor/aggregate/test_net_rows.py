"""The rows of a changelog that count."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_client.executor.aggregate.bundles import net_rows

SIGNS = st.lists(st.sampled_from([1, -1]), min_size=1, max_size=12)


def modelled(signs, before):
    """Drops each row that is retracted from a key without rows."""
    kept, count = [], before
    for sign in signs:
        kept.append(sign > 0 or count > 0)
        count += sign if kept[-1] else 0
    return kept, count


@given(st.lists(SIGNS, min_size=1, max_size=8))
def test_a_row_taken_back_from_a_key_that_has_none_is_dropped(keys):
    starts = np.cumsum([0, *map(len, keys)])[:-1].astype(np.int64)
    kept, net = net_rows(np.array([sign for signs in keys for sign in signs]), starts, 0)
    expected = [modelled(signs, 0) for signs in keys]
    assert kept.tolist() == [each for found, _ in expected for each in found]
    assert net.tolist() == [count for _, count in expected]


@given(SIGNS, st.integers(0, 5))
def test_rows_that_came_before_count(signs, before):
    kept, net = net_rows(np.array(signs), np.zeros(1, np.int64), before)
    assert (kept.tolist(), int(net[0])) == modelled(signs, before)


@given(st.lists(st.sampled_from([1, -1]), min_size=2, max_size=30), st.data())
def test_cutting_a_key_changes_nothing(signs, data):
    whole, total = net_rows(np.array(signs), np.zeros(1, np.int64), 0)
    cut = data.draw(st.integers(1, len(signs) - 1))
    first, so_far = net_rows(np.array(signs[:cut]), np.zeros(1, np.int64), 0)
    second, net = net_rows(np.array(signs[cut:]), np.zeros(1, np.int64), int(so_far[0]))
    assert np.concatenate((first, second)).tolist() == whole.tolist()
    assert net == total
