"""The source of all random choices: a recorded sequence of integers, so that a case can be simplified by editing it.

By convention the choice 0 is the simplest one, and a sequence that has ended returns zeros. If choices are deleted or
lowered, any generator therefore creates a simpler case, without code for this in the generator. The idea is
Hypothesis's, but its shrinking requires an engine that runs the tests itself and stops at the first failure.
"""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["Choices"]

T = TypeVar("T")


class Choices:
    """Choices made at random from a seed, or repeated from a recorded sequence."""

    def __init__(self, seed: str = "", recorded: Sequence[int] | None = None) -> None:
        self._random = random.Random(seed)
        self._recorded = recorded
        self.made: list[int] = []

    def below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1."""
        if self._recorded is None:
            value = self._random.randrange(bound)
        else:
            value = min(self._recorded[len(self.made)], bound - 1) if len(self.made) < len(self._recorded) else 0
        self.made.append(value)
        return value

    def between(self, least: int, most: int) -> int:
        """A number from `least` to `most`, the simplest is `least`."""
        return least + self.below(most - least + 1)

    def chance(self, percent: int) -> bool:
        """True in this percentage of cases."""
        return self.below(100) >= 100 - percent

    def of(self, options: Sequence[T]) -> T:
        """One of the options; the first is the simplest."""
        return options[self.below(len(options))]

    def weighted(self, options: Sequence[tuple[int, T]]) -> T:
        """One of the options, by weight."""
        found = self.below(sum(weight for weight, _ in options))
        for weight, option in options:
            if found < weight:
                return option
            found -= weight
        raise AssertionError("the weights were exceeded")

    def several(self, make: Callable[[], T], least: int, most: int) -> list[T]:
        """From `least` to `most` results of `make`; each beyond `least` is preceded by a choice."""
        made: list[T] = []
        while len(made) < most and (len(made) < least or self.chance(75)):
            made.append(make())
        return made

    def some(self, options: Sequence[T], least: int = 0, most: int | None = None) -> list[T]:
        """Some of the options, each at most once, in random order."""
        left, chosen = list(options), []
        limit = len(left) if most is None else min(most, len(left))
        while len(chosen) < limit and (len(chosen) < least or self.chance(60)):
            chosen.append(left.pop(self.below(len(left))))
        return chosen
