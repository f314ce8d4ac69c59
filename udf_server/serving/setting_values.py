"""Readers of the values of settings: text from the environment and the command line, other values from a file."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from remote_udf.errors import InvalidOption
from remote_udf.option_values import ValueReader, reader, size
from udf_server.base.errors import InvalidConfig

__all__ = ["bytes_", "in_file", "invalid", "nonblank", "number", "switch", "texts", "whole_number"]

ValueT = TypeVar("ValueT")
TableT = TypeVar("TableT")
NumberT = TypeVar("NumberT", int, float)


def invalid(value: Any, expected: str) -> InvalidOption:
    """The error of a value that is not what is expected."""
    return InvalidOption(f"{value!r} is not valid (expected {expected})")


@reader("Switch")
def switch(value: str | bool) -> bool:
    """Read true or false."""
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    found = known.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise invalid(value, "true or false")
    return found


def _number_of(kind: Callable[[str | float], NumberT], expected: str) -> ValueReader[NumberT]:
    """A reader of numbers from text. A value from a file must be such a number."""

    @reader("Count")
    def read(value: str | float) -> NumberT:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            number = kind(value)
            if not isinstance(value, bool) and math.isfinite(number) and (isinstance(value, str) or number == value):
                return number
        raise invalid(value, expected)

    return read


whole_number, number = _number_of(int, "a whole number"), _number_of(float, "a number")


@reader("Count")
def bytes_(value: str | int) -> int:
    """Read a number of bytes, which may be a text with a unit."""
    return size(value) if isinstance(value, str) else whole_number(value)


@reader("str")
def nonblank(value: str) -> str:
    """Read a text that is not empty."""
    # An empty text, as of a variable that is not set, would turn off access, TLS or encryption, or open an address.
    if not isinstance(value, str) or not value.strip():
        raise invalid(value, "a text that is not empty")
    return value


@reader("str")
def texts(value: str | Sequence[str]) -> tuple[str, ...]:
    """Read a list of texts, or a text with commas."""
    try:
        return tuple(part.strip() for part in (value.split(",") if isinstance(value, str) else value) if part.strip())
    except (TypeError, AttributeError):
        raise invalid(value, "a list of texts") from None


def in_file(read: Callable[[TableT], ValueT]) -> ValueReader[ValueT]:
    """A reader of tables, which only a file has."""

    def checked(value: TableT) -> ValueT:
        try:
            return read(value)
        except (InvalidConfig, InvalidOption):
            raise
        except (KeyError, ValueError, TypeError, AttributeError):
            raise invalid(value, "a table") from None

    return ValueReader(checked, str, "Mapping[str, Any]")
