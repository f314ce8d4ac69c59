"""How much of a test `make test` runs, and `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

__all__ = ["examples", "few_quickly"]

FEWEST = 5


def examples(number: int, **others: Any) -> settings:
    """Returns settings with this number of examples, or in a profile that draws fewer than 100 with as many fewer.

    A number that a test sets itself would override the profile.
    """
    default = settings.default
    assert default is not None
    return settings(max_examples=max(number * default.max_examples // 100, min(number, FEWEST)), **others)


def few_quickly(number: int, values: Iterable[Any]) -> list[Any]:
    """Returns the values as parameters of a test; with all but the first ones, it is a long test.

    Args:
        number: How many values `make test` has.
        values: A value, or a tuple if the test has several parameters.
    """
    return [
        value
        if position < number
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.long)
        for position, value in enumerate(values)
    ]
