"""Converts arguments that users type to columns, and values to JSON."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from udf_server.declaring.functions import Function

__all__ = ["argument_columns", "with_text_keys"]


def argument_columns(function: Function, arguments: Sequence[str]) -> list[pa.Array]:
    """A column of one value per argument. If an argument is not JSON, it is text.

    Raises StreamError ARGUMENT_COUNT, or ARGUMENT_VALUE if a number is too large for its parameter.
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
    """The same value with all keys as text, because the keys of JSON objects are text."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): with_text_keys(item) for key, item in value.items()}
    return [with_text_keys(item) for item in value] if isinstance(value, list) else value


def _column(function: Function, position: int, value: Any, text: str) -> pa.Array:
    """One value as a column of the first type of its parameter that can represent it."""
    too_large = False
    for codec in function.parameters[min(position, len(function.parameters) - 1)]:
        for candidate in (value, text):
            try:
                # Arrow parses dates, times and decimals from text.
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
