"""Which tests run, and in what order: a seed shuffles the files, and in each file its classes and tests."""

import hashlib
from collections import Counter
from collections.abc import Sequence

import pytest

__all__ = ["few_cases", "in_order"]


def in_order(items: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Sort tests by a hash of the seed and their names.

    Tests of a file, and those of a class, stay together, so their fixtures are made once. The order of two tests does
    not depend on which others are run, so that a failure can be repeated with fewer tests.
    """

    def place(item: pytest.Item) -> list[bytes]:
        # Folders are no part of it: the files of all folders are shuffled together.
        names = [node.nodeid for node in item.listchain() if not isinstance(node, (pytest.Session, pytest.Directory))]
        return [hashlib.sha256(f"{seed} {name}".encode()).digest() for name in names]

    return sorted(items, key=place)


def few_cases(items: Sequence[pytest.Item], most: int) -> list[pytest.Item]:
    """The tests, with the first `most` cases of each test with parameters that uses Spark or is slow.

    Such a case takes seconds, and the first ones are the usual ones.
    """
    seen = Counter[tuple[object, str]]()

    def is_wanted(item: pytest.Item) -> bool:
        name, _, case = item.name.partition("[")
        if not case or not ("spark" in getattr(item, "fixturenames", ()) or item.get_closest_marker("slow")):
            return True
        seen[item.parent, name] += 1
        return seen[item.parent, name] <= most

    return [item for item in items if is_wanted(item)]
