"""Simplifies a case that shows a difference: deletes and lowers choices while the kind of the difference stays."""

import time
from collections.abc import Callable, Iterator

from tests.differential.cases import Case
from tests.differential.choices import Choices

__all__ = ["shrink"]

Made = tuple[int, ...]


def shrink(
    draw: Callable[[Choices], Case], choices: list[int], is_same: Callable[[Case], bool], *,
    seconds: float, now: Callable[[], float] = time.monotonic,
) -> Case:  # fmt: skip
    """The smallest case, found within the time, whose difference `is_same`."""
    end, best = now() + seconds, tuple(choices)
    smallest = draw(Choices(recorded=best))
    tried: set[Made] = {best}
    progress = True
    while progress and now() < end:
        progress = False
        for candidate in _smaller(best):
            if now() >= end:
                break
            replayed = Choices(recorded=candidate)
            try:
                case = draw(replayed)
            except (IndexError, ValueError):  # a generator has no such option
                continue
            made = tuple(replayed.made)
            if made in tried or (len(made), made) >= (len(best), best):
                continue
            tried.add(made)
            if is_same(case):
                best, smallest, progress = made, case, True
                break
    return smallest


def _smaller(made: Made) -> Iterator[Made]:
    """Sequences that are shorter or lower, with the largest changes first."""
    size = max(1, len(made) // 2)
    while size:
        for start in range(0, len(made), size):
            yield made[:start] + made[start + size :]
        for start in range(0, len(made), size):
            if any(made[start : start + size]):
                piece = made[start : start + size]
                yield made[:start] + (0,) * len(piece) + made[start + size :]
        size //= 2
    for index, value in enumerate(made):
        for lower in (value // 2, value - 1):
            if 0 < lower < value:
                yield (*made[:index], lower, *made[index + 1 :])
