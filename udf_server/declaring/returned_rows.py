"""Scalar functions that return rows: the type of a row, and generators that yield rows."""

import contextlib
import functools
import inspect
import types
import typing
from collections import abc
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import ParamSpec, TypeVar

from udf_server.base.errors import DeclarationError
from udf_server.declaring.annotations import AuthorCode, GivenType, type_given

__all__ = ["MOST_ROWS", "collecting", "row_of", "type_of_row"]

P = ParamSpec("P")
T = TypeVar("T")
MOST_ROWS = 100_000
"""Maximum number of rows that a generator yields for one call: they are held until it ends."""
_SERIES = (
    list, abc.Sequence, abc.Iterable, abc.Iterator, abc.Generator, abc.AsyncIterable, abc.AsyncIterator,
    abc.AsyncGenerator,
)  # fmt: skip
"""Annotations whose first argument is the type of a row."""


def collecting(code: AuthorCode) -> AuthorCode:
    """A function that returns the rows that a generator yields, as a list; other code is returned unchanged.

    It raises ValueError after MOST_ROWS rows, so that a generator without an end does not fill the memory.
    """
    if inspect.isasyncgenfunction(code):
        return _awaited(code)
    return _called(code) if inspect.isgeneratorfunction(code) else code


def _awaited(code: Callable[P, AsyncGenerator[T, None]]) -> Callable[P, Awaitable[list[T]]]:
    @functools.wraps(code)
    async def awaited(*arguments: P.args, **named: P.kwargs) -> list[T]:
        rows: list[T] = []
        async with contextlib.aclosing(code(*arguments, **named)) as yielded:
            async for row in yielded:
                _add(rows, row)
        return rows

    return awaited


def _called(code: Callable[P, Generator[T, None, None]]) -> Callable[P, list[T]]:
    @functools.wraps(code)
    def called(*arguments: P.args, **named: P.kwargs) -> list[T]:
        rows: list[T] = []
        with contextlib.closing(code(*arguments, **named)) as yielded:
            for row in yielded:
                _add(rows, row)
        return rows

    return called


def _add(rows: list[T], row: T) -> None:
    if len(rows) == MOST_ROWS:
        raise ValueError(f"one call yielded more than {MOST_ROWS:,} rows; all rows of a call are held until it ends")
    rows.append(row)


def row_of(annotation: GivenType, where: str) -> GivenType:
    """The annotation of a row: T of `list[T]`, `Iterator[T]` and similar. Raises DeclarationError for another one."""
    members = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [each for each in typing.get_args(annotation) if each is not type(None)]
    arguments = typing.get_args(members[0])
    if len(members) != 1 or typing.get_origin(members[0]) not in _SERIES or not arguments:
        shown = annotation.__name__ if isinstance(annotation, type) else annotation
        raise DeclarationError(
            f"{where}: a function with rows=True returns list[...] with the type of a row, or yields rows and returns "
            f"Iterator[...] or AsyncIterator[...], not {shown}; or give 'returns', such as 'name string, price double'"
        )
    return arguments[0]


def type_of_row(given: GivenType, where: str) -> GivenType | None:
    """The type of a row from `returns`: a text has the columns, as in "name string, price double"."""
    if not isinstance(given, str):
        return given
    try:
        return type_given(f"struct<{given}>", where)
    except DeclarationError:
        raise DeclarationError(
            f"{where}: with rows=True 'returns' has the columns of a row, such as 'name string, price double', "
            f"not {given!r}"
        ) from None
