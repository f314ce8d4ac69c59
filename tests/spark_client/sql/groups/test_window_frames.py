"""Windows of SQL as windows of the DataFrame API."""

import pytest

from spark_client import PlanError, Window
from spark_client.executor.aggregate.frames import Frame
from spark_client.functions.window import Months, Ordered
from spark_client.sql.groups.windows_over import read_window
from spark_client.sql.text.parsing import Text


def window(over, clause=""):
    select = Text(f"SELECT f(x) OVER {over} FROM t {clause}", None, {}).tree
    return read_window(select.expressions[0], select, None, lambda tree: tree.sql("spark"))


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("", Frame(False, None, 0)),
        ("ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING", Frame(True, -2, 1)),
        ("ROWS BETWEEN UNBOUNDED PRECEDING AND 0 FOLLOWING", Frame(True, None, 0)),
        ("ROWS UNBOUNDED PRECEDING", Frame(True, None, 0)),
        ("rows 3 preceding", Frame(True, -3, 0)),
        ("RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING", Frame(False, 0, None)),
        ("RANGE BETWEEN 5 PRECEDING AND 2 PRECEDING", Frame(False, -5, -2)),
        ("RANGE BETWEEN 5000000000000000000 PRECEDING AND CURRENT ROW", Frame(False, -5 * 10**18, 0)),
        ("ROWS BETWEEN 2 FOLLOWING AND 5000000000000000000 FOLLOWING", Frame(True, 2, 1 << 62)),
    ],
)
def test_a_frame_is_its_bounds(frame, expected):
    assert window(f"(ORDER BY a {frame})").frame == expected


def test_partition_and_order_are_columns():
    spec = window("(PARTITION BY k, j % 2 ORDER BY a, b DESC)")
    assert spec.partition == ("k", "j % 2")
    first, second = spec.order
    assert first == "a" and isinstance(second, Ordered) and (second.column, second.descending) == ("b", True)


@pytest.mark.parametrize("frame", ["", " ROWS 1 PRECEDING", " RANGE 1 PRECEDING"])
def test_nulls_are_first_or_last_as_written(frame):
    (last,), (first,) = window(f"(ORDER BY a NULLS LAST{frame})").order, window(f"(ORDER BY a DESC{frame})").order
    assert (last.column, last.descending, last.nulls_first) == ("a", False, False)
    assert (first.column, first.descending, first.nulls_first) == ("a", True, False)
    assert window(f"(ORDER BY a DESC NULLS FIRST{frame})").order[0].nulls_first
    assert window(f"(ORDER BY a NULLS FIRST{frame})").order == ("a",)


@pytest.mark.parametrize("over", ["w", "(w)", "v"])
def test_a_named_window_is_its_definition(over):
    spec = window(over, "WINDOW w AS (PARTITION BY k ORDER BY a ROWS 1 PRECEDING), v AS (w)")
    assert spec.partition == ("k",) and spec.frame == Frame(True, -1, Window.currentRow)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ("w", "line 1, column 8: no window 'w'"),
        (
            "(ORDER BY a ROWS BETWEEN 1 FOLLOWING AND 1 PRECEDING)",
            "line 1, column 8: invalid frame: start 1 is after end",
        ),
        (
            "(ORDER BY a ROWS BETWEEN 1 PRECEDING AND UNBOUNDED PRECEDING)",
            "line 1, column 8: invalid frame: it cannot end at UNBOUNDED PRECEDING",
        ),
        (
            "(ORDER BY a RANGE BETWEEN UNBOUNDED FOLLOWING AND UNBOUNDED FOLLOWING)",
            "line 1, column 8: invalid frame: it cannot start at UNBOUNDED FOLLOWING",
        ),
    ],
)
def test_a_window_that_cannot_be_is_refused_with_its_place(over, message):
    with pytest.raises(PlanError, match=message):
        window(over)


def test_an_offset_is_shown_as_text():
    with pytest.raises(PlanError, match="a frame from -3 months to 20 minutes has offsets of two kinds"):
        Window.orderBy("a").rangeBetween(-Months(3), "20 minutes")


def test_only_infinity_and_the_names_of_spark_are_unbounded():
    """A large offset is one: the rows of a frame with offsets have a value, and are neither null nor NaN."""
    infinity = float("inf")
    by = Window.orderBy("a")
    assert by.rangeBetween(-1e300, 1e300).frame == Frame(False, -1e300, 1e300)
    assert by.rangeBetween(-infinity, infinity).frame == Frame(False, None, None)
    assert by.rangeBetween(Window.unboundedPreceding, Window.unboundedFollowing).frame == Frame(False, None, None)
    assert by.rowsBetween(-(10**400), 10**400).frame == Frame(True, None, None)
    for between in (by.rangeBetween, by.rowsBetween):
        with pytest.raises(PlanError, match="it cannot end at UNBOUNDED PRECEDING"):
            between(Window.currentRow, Window.unboundedPreceding)
    with pytest.raises(PlanError, match="nan is not an offset"):
        by.rangeBetween(float("nan"), 0)
