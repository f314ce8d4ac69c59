"""Settings of property tests."""

from typing import Any

from hypothesis import settings

__all__ = ["examples"]

FEWEST = 5


def examples(number: int, **others: Any) -> settings:
    """Returns settings with this number of examples, or in a profile that draws fewer than 100 with as many fewer.

    A number that a test sets itself would override the profile.
    """
    default = settings.default
    assert default is not None
    return settings(max_examples=max(number * default.max_examples // 100, min(number, FEWEST)), **others)
