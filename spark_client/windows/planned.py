"""What is known of a windowed DataFrame: the rows it was made from, and how.

`remote.group_by` computes the panes of overlapping windows once instead of every window. That is right
for all rows of all windows only, so it is known of the very DataFrame a window function returned, and
not of what a filter or a join has made of it.
"""

import dataclasses
import weakref

from pyspark.sql import DataFrame

from spark_client.windows.panes import PaneWindows

__all__ = ["Windowed", "remember", "windowed"]


@dataclasses.dataclass(frozen=True)
class Windowed:
    """`rows` is the frame before its rows were spread over windows."""

    rows: DataFrame
    time_col: str
    windows: PaneWindows


_KNOWN: weakref.WeakKeyDictionary[DataFrame, Windowed] = weakref.WeakKeyDictionary()


def remember(spread: DataFrame, rows: DataFrame, time_col: str, windows: PaneWindows) -> DataFrame:
    """Returns `spread`, of which `windowed` knows from then on."""
    _KNOWN[spread] = Windowed(rows, time_col, windows)
    return spread


def windowed(frame: DataFrame) -> Windowed | None:
    """How the frame was made, if a function of overlapping windows returned it."""
    return _KNOWN.get(frame)
