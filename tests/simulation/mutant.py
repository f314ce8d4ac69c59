"""Mutant: a planted bug, and what often replaces a method."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

__all__ = ["Mutant", "nothing", "returns", "zero"]


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A planted bug: `patch` makes what replaces a method from the method."""

    what: str
    owner: Any
    method: str
    patch: Callable[[Any], Any]

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        original = self.owner.__dict__[self.method]
        with mock.patch.object(self.owner, self.method, self.patch(original)):
            yield


def nothing(original: Any) -> Any:
    return lambda self, *arguments, **keywords: None


def returns(value: Any) -> Callable[[Any], Any]:
    return lambda original: lambda self, *arguments, **keywords: value


def zero(original: Any) -> Any:
    return property(lambda self: 0)
