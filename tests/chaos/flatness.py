"""Checks that the resources of a process do not grow: compares the last quarter of a series with the second quarter."""

from dataclasses import dataclass
from statistics import median

__all__ = ["ALLOWED", "Course", "courses"]

ALLOWED = {
    "memory MB": (48.0, 0.1), "maps": (60.0, 0.1), "threads": (12.0, 0.0), "files": (8.0, 0.0),
    "checkpoint entries": (60.0, 0.3), "checkpoint MB": (16.0, 0.3), "CPU ms": (100.0, 0.3),
    "state rows": (100.0, 0.3),
}  # fmt: skip
"""The allowed growth, by the last words of a column: an absolute value, or a share of the early value.

The shared memory of one stream has 32 MB."""


@dataclass(frozen=True)
class Course:
    """The course of a column. The first quarter is for warming up; medians ignore single samples."""

    name: str
    early: float
    """The median of the second quarter."""
    late: float
    """The median of the last quarter."""
    allowed: float

    @property
    def grew(self):
        return self.late - self.early > self.allowed

    def __str__(self):
        told = f"{self.name}: {self.early:.4g} in the second quarter, {self.late:.4g} in the last"
        return f"{told}, GREW by more than {self.allowed:.3g}" if self.grew else told


def courses(rows):
    """The course of every column that must not grow, given samples at equal intervals."""
    quarter = max(len(rows) // 4, 1)
    found = []
    for name in rows[0]:
        limits = next((limits for words, limits in ALLOWED.items() if name.endswith(words)), None)
        if limits is not None:
            early = median(row[name] for row in rows[quarter : 2 * quarter] or rows)
            late = median(row[name] for row in rows[-quarter:])
            found.append(Course(name, early, late, max(limits[0], limits[1] * early)))
    return found
