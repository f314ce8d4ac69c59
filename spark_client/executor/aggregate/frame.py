"""Frame: the rows around a row that an aggregate with OVER reads."""

import dataclasses

__all__ = ["TO_CURRENT", "WHOLE", "Frame"]


@dataclasses.dataclass(frozen=True)
class Frame:
    """The rows around a row, from `start` to `end`; None means unbounded.

    Offsets are rows, or differences in the column of the order: a number, or for times seconds or months.
    """

    rows: bool
    start: float | None
    end: float | None
    of_time: bool = False
    """Whether the offsets are seconds."""
    of_months: bool = False

    @property
    def has_offsets(self) -> bool:
        """Whether a RANGE frame compares values, and not only whether they are equal."""
        return not self.rows and any(bound not in (None, 0) for bound in (self.start, self.end))


WHOLE = Frame(rows=True, start=None, end=None)
TO_CURRENT = Frame(rows=False, start=None, end=0)
"""Up to the current row and its peers: SQL's default if there is an order."""
