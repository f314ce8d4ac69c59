"""Records how a windowed DataFrame was created: from which rows, and by which windows.

With this, `remote.group_by` computes each pane of overlapping windows once. This is correct only for all rows of all
windows, so it applies only to the DataFrame object that a window function returned, not to a DataFrame derived from it.
"""

import dataclasses
import weakref

from pyspark.sql import DataFrame

from spark_client.windows.panes import PaneWindows

__all__ = ["Windowed", "remember", "windowed"]


@dataclasses.dataclass(frozen=True)
class Windowed:
    """`rows` is the frame before its rows were assigned to windows."""

    rows: DataFrame
    time_col: str
    windows: PaneWindows


_KNOWN: weakref.WeakKeyDictionary[DataFrame, Windowed] = weakref.WeakKeyDictionary()


def remember(spread: DataFrame, rows: DataFrame, time_col: str, windows: PaneWindows) -> DataFrame:
    """Return `spread`, and record how it was created, for `windowed`."""
    _KNOWN[spread] = Windowed(rows, time_col, windows)
    return spread


def windowed(frame: DataFrame) -> Windowed | None:
    """How the frame was created, if a function of overlapping windows returned it."""
    return _KNOWN.get(frame)
