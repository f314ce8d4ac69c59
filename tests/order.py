"""An order of tests that a seed chooses: files in any order, and in each file its classes and tests."""

import hashlib
from collections.abc import Sequence

import pytest

__all__ = ["in_order"]


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
