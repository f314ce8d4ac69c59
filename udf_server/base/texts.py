"""Arguments that people type, as columns, and values as JSON for them to read."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from udf_server.base.functions import Function

__all__ = ["argument_columns", "with_text_keys"]


def argument_columns(function: Function, arguments: Sequence[str]) -> list[pa.Array]:
    """A column of one value per argument. Arguments are JSON, or text where they are not.

    Raises StreamError ARGUMENT_COUNT, or ARGUMENT_VALUE for a number that no parameter holds.
    """
    function.spec.check_count(len(arguments))
    columns = []
    for position, text in enumerate(arguments):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        columns.append(_column(function, position, value, text))
    return columns


def with_text_keys(value: Any) -> Any:
    """The same for JSON, whose objects have no other keys."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): with_text_keys(item) for key, item in value.items()}
    return [with_text_keys(item) for item in value] if isinstance(value, list) else value


def _column(function: Function, position: int, value: Any, text: str) -> pa.Array:
    """One value as a column of the first type of its parameter that takes it."""
    too_large = False
    for codec in function.parameters[min(position, len(function.parameters) - 1)]:
        for candidate in (value, text):
            try:
                # Arrow reads dates, times and decimals from text.
                text_column = isinstance(candidate, str)
                return pa.array([candidate]).cast(codec.type) if text_column else pa.array([candidate], codec.type)
            except OverflowError:
                too_large = True
            except (pa.ArrowException, TypeError, ValueError):
                continue
    if too_large:
        raise StreamError(
            ErrorKind.PROTOCOL, ErrorCode.ARGUMENT_VALUE,
            f"function {function.spec.key}, argument {position + 1}: a number of {len(text)} digits is too large",
        )  # fmt: skip
    return pa.array([text])
