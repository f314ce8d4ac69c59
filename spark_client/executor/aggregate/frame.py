"""Frame: which rows around a row its window holds, as the planner says it and executors read it."""

import dataclasses

__all__ = ["TO_CURRENT", "WHOLE", "Frame"]


@dataclasses.dataclass(frozen=True)
class Frame:
    """Which rows around a row count: from `start` to `end`, None for unbounded.

    Offsets are rows, or differences of the one column of the order: a number, or for times seconds or months.
    """

    rows: bool
    start: float | None
    end: float | None
    of_time: bool = False
    """The offsets are seconds."""
    of_months: bool = False

    @property
    def has_offsets(self) -> bool:
        """A RANGE frame that looks at values, not only at which are equal."""
        return not self.rows and any(bound not in (None, 0) for bound in (self.start, self.end))


WHOLE = Frame(rows=True, start=None, end=None)
TO_CURRENT = Frame(rows=False, start=None, end=0)
"""Up to the current row and its peers: SQL's default with an order."""
