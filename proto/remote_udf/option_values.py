"""Readers of the values of options and settings, from text or Python objects, which convert them back to text too.

Each reader raises InvalidOption with the value and with what is expected instead.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from remote_udf.credentials import has_credentials
from remote_udf.durations import format_seconds, parse_seconds
from remote_udf.errors import InvalidOption

__all__ = [
    "P95",
    "ValueReader",
    "choice",
    "count",
    "duration",
    "duration_or_p95",
    "duration_or_zero",
    "fraction",
    "names",
    "path",
    "percent",
    "reader",
    "size",
    "switch",
    "text",
    "unknown",
]


_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*((?:[kmgt]?b)?)\s*", re.IGNORECASE)
_SIZES = ("B", "KB", "MB", "GB", "TB")


ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class ValueReader(Generic[ValueT]):
    """Reads a value when it is called. `format` converts it to a text, which it can read.

    `accepts` is the annotation of what it reads: a name of `remote_udf.option_types`, or Python code.
    """

    read: Callable[[Any], ValueT]
    format: Callable[[Any], str]
    accepts: str

    def __call__(self, value: Any) -> ValueT:
        return self.read(value)


def reader(
    accepts: str, shown: Callable[[Any], str] = str
) -> Callable[[Callable[[Any], ValueT]], ValueReader[ValueT]]:  # fmt: skip
    """Make a reader of a function that reads values. `shown` converts them to text."""
    return lambda read: ValueReader(read, shown, accepts)


def count(minimum: int) -> ValueReader[int]:
    """A reader of whole numbers of at least `minimum`."""

    @reader("Count")
    def parse(value: Any) -> int:
        try:
            number = int(value)
            whole = isinstance(value, str) or number == value
        except (TypeError, ValueError, OverflowError):
            number, whole = minimum, False
        if not whole or isinstance(value, (bool, float)) or number < minimum:
            raise InvalidOption(f"{value!r} is not a whole number of at least {minimum}")
        return number

    return parse


@reader("Duration", format_seconds)
def duration(value: Any) -> float:
    """Read a duration that is longer than zero, in seconds."""
    seconds = parse_seconds(value)
    if seconds <= 0:
        raise InvalidOption(f"{value!r} must be longer than zero")
    return seconds


P95 = "p95"


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else format_seconds(value)


@reader("Duration", _shown)
def duration_or_p95(value: Any) -> float | str:
    """Read a duration that is longer than zero, in seconds, or the word p95."""
    return P95 if str(value).strip().lower() == P95 else duration(value)


@reader("Duration", format_seconds)
def duration_or_zero(value: Any) -> float:
    """Read a duration, which may be zero, in seconds."""
    return parse_seconds(value)


@reader("Count")
def size(value: Any) -> int:
    """Read a number of bytes, at least one, which may have a unit: "20 GB" are 20 * 1024 ** 3 bytes."""
    match = _SIZE.fullmatch(str(value))
    if match is None:
        raise InvalidOption(f"{value!r} is not a size: write a number of bytes, or a number and kB, MB, GB or TB")
    number = int(float(match[1]) * 1024 ** _SIZES.index(match[2].upper() or "B"))
    if number < 1:
        raise InvalidOption(f"{value!r} is less than one byte")
    return number


EnumT = TypeVar("EnumT", bound=StrEnum)


def choice(kind: type[EnumT], aliases: Mapping[str, EnumT] | None = None) -> ValueReader[EnumT]:
    """A reader of the members of `kind`, by their values or by `aliases`. Case and underscores do not matter."""
    values = ", ".join(f'"{each}"' for each in kind)

    @reader(f"{kind.__name__} | Literal[{values}]")
    def parse(value: Any) -> EnumT:
        text = str(value).strip().lower().replace("_", "-")
        if aliases and text in aliases:
            return aliases[text]
        try:
            return kind(text)
        except ValueError:
            raise InvalidOption(f"{value!r} is not one of {', '.join(kind)}") from None

    return parse


@reader("float | str", "{:.6g}".format)
def fraction(value: Any) -> float:
    """Read a fraction from 0 to 1, which may be given in percent."""
    text = str(value).strip()
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise InvalidOption(f"{value!r} is not a share: write '5%' or a number from 0 to 1")
    return number


def percent(share: float) -> str:
    """A fraction as a text that `fraction` reads, rounded to six digits."""
    return f"{100 * share:.6g} %"


@reader("ErrorClasses", ",".join)
def names(value: Any) -> tuple[str, ...]:
    """Read names of exception classes from a text with commas, from classes or from a sequence of either."""
    if isinstance(value, str):
        parts: Sequence[Any] = value.split(",") if value.strip() else ()
    else:
        parts = tuple(value) if isinstance(value, Iterable) and not isinstance(value, type) else (value,)
    names = tuple(part.__name__ if isinstance(part, type) else str(part).strip() for part in parts)
    if not all(name.isidentifier() for name in names):
        raise InvalidOption(f"{value!r} is not a list of exception class names")
    return names


@reader("str")
def path(value: Any) -> str:
    """Read a path or URI, which must not be empty. One with credentials is refused, and not shown."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidOption(f"{value!r} is not a path or URI")
    if has_credentials(value):
        raise InvalidOption("the path has credentials; set them in the environment of the workers instead")
    return value


@reader("str")
def text(value: Any) -> str:
    """Read a text, which must not be empty."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidOption(f"{value!r} is not a text")
    return value


@reader("Switch", lambda value: str(value).lower())
def switch(value: Any) -> bool:
    """Read true or false, which may be text."""
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"{value!r} is neither true nor false")
    return text == "true"


def unknown(what: str, name: str, known: Collection[str], elsewhere: str | None = None) -> str:
    """The message for a name that is not known, with a similar one. `elsewhere` is a name that may be meant instead."""
    plain = {each.replace("_", "-"): each for each in known}
    similar = difflib.get_close_matches(name.replace("_", "-"), plain, n=1)
    close = [elsewhere] if elsewhere in known else [plain[each] for each in similar]
    hint = f", did you mean {close[0]!r}?" if close else ""
    return f"unknown {what} {name!r}{hint} (known: {', '.join(sorted(known))})"
