"""Checks of the contents of a case file. An error names the place, what was found and what is expected."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["CaseError", "described", "listed", "mapping", "named", "one_of", "text"]

_SHOWN = 60


class CaseError(ValueError):
    """A case cannot be read: field, what was found there, what is expected."""

    def __init__(self, field: str, found: str, expected: str) -> None:
        super().__init__(f"{field}: found {found}, expected {expected}")


def mapping(field: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CaseError(field, described(value), "an object")
    return value


def listed(field: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise CaseError(field, described(value), "a list")
    return list(value)


def text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise CaseError(field, described(value), "a text")
    return value


def one_of(field: str, value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise CaseError(field, described(value), f"one of {', '.join(filter(None, known))}")
    return str(value)


def named(field: str, name: Any, known: Mapping[str, Any]) -> Any:
    if name not in known:
        raise CaseError(field, described(name), f"a table of the file: {', '.join(known) or 'there is none'}")
    return known[name]


def described(value: Any) -> str:
    """The value, shortened."""
    shown = "nothing" if value is None else repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
