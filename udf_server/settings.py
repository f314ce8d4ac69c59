"""Reads the settings of a plugin from the server's environment. A frozen dataclass declares them."""

import dataclasses
import math
import os
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from udf_server.base.errors import DeclarationError, InvalidSetting

__all__ = ["InvalidSetting", "from_environment", "setting"]

T = TypeVar("T")
Settings = TypeVar("Settings")
_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


def setting(
    doc: str, *, default: Any = dataclasses.MISSING, secret: bool = False, read: Callable[[str], Any] | None = None
) -> Any:
    """Declare a field of a class of settings, if its type alone does not describe it.

    If `read` raises a ValueError other than InvalidSetting, its message is not shown, because it may contain the text.

    Args:
        doc: What the setting means. The error for a missing variable shows it.
        default: The value if the variable is not set. Without a default the variable is required.
        secret: Whether the value is kept out of the repr.
        read: Converts the variable's text. It raises InvalidSetting with a reason such as "is not a URL".
    """
    return dataclasses.field(default=default, repr=not secret, metadata={"doc": doc, "read": read})


def from_environment(
    settings: type[Settings], prefix: str, environment: Mapping[str, str] = os.environ
) -> Settings:  # fmt: skip
    """Return an object of a dataclass whose fields are read from environment variables.

    An empty variable counts as not set. Numbers must be finite and greater than zero.

    Args:
        settings: A dataclass. Fields are `str`, `int`, `float`, `bool` or `Path`, with or without `| None`.
        prefix: Start of the variables' names; the field's name in capitals follows.
        environment: The variables.

    Raises:
        InvalidSetting: A variable is missing or not valid. The message has its name and never its value.
        DeclarationError: A field has another type and no `read`.
    """
    hints = typing.get_type_hints(settings)
    values = {}
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        name = f"{prefix}{field.name.upper()}"
        read = field.metadata.get("read") or _reader(settings, field.name, hints[field.name])
        text = environment.get(name, "")
        if text:
            values[field.name] = _read(name, text, read)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            doc = field.metadata.get("doc")
            raise InvalidSetting(f"{name} is not set{f': {doc}' if doc else ''}")
    return settings(**values)


def _read(name: str, text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except InvalidSetting as reason:
        raise InvalidSetting(f"{name} {reason}") from None
    except (ValueError, TypeError, OverflowError):
        raise InvalidSetting(f"{name} is not valid: {read.__name__} rejects it") from None


def _reader(settings: type, field: str, hint: type) -> Callable[[str], str | float | Path]:
    kinds = {hint}
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        kinds = set(typing.get_args(hint)) - {types.NoneType}
    readers: dict[type, Callable[[str], str | float | Path]] = {
        str: str,
        int: lambda text: _above_zero(text, int, "a whole number"),
        float: lambda text: _above_zero(text, float, "a number"),
        bool: _truth,
        Path: Path,
    }
    if len(kinds) != 1 or not kinds <= readers.keys():
        raise DeclarationError(
            f"{settings.__name__}.{field}: expected str, int, float, bool or Path, or a setting(..., read=...), "
            f"found {hint}"
        )
    return readers[kinds.pop()]


def _above_zero(text: str, kind: type[int] | type[float], what: str) -> float:
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not 0 < number < math.inf:
        raise InvalidSetting(f"is not {what} greater than zero")
    return number


def _truth(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise InvalidSetting("is neither true nor false")
    return text.lower() in _TRUE
