"""What authors of process table functions write and get: the base class, hints for state, and rows with a kind."""

import collections
import functools
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from remote_udf.row_kinds import ChangelogMode, RowKind
from udf_server.declaring.annotations import GivenType

__all__ = ["ProcessTableFunction", "Row", "StateHint", "row_class", "shown"]


@dataclass(frozen=True)
class StateHint:
    """Declare a parameter of `eval` as a state entry: `count: Annotated[Count, StateHint(ttl="1 hour")]`.

    Args:
        ttl: The time-to-live of the entry, which counts from the last write.
        type: The fields of a `Row` that serves as state, as DDL.
        broadcast: The entry is the same for all keys, and only rows of broadcast tables change it.
    """

    ttl: str | None = None
    type: str | None = None
    broadcast: bool = False


class ProcessTableFunction:
    """A function that processes rows of tables one by one, emits rows, and has state and timers by key (FLIP-440).

    `eval(self, ctx, state..., arguments...)` is called for each row. Annotations declare its parameters: an optional
    ProcessContext; state entries, with StateHint or as ListView, MapView or ValueView; tables, with ArgumentTrait;
    all others are scalar arguments. If there are several tables, a call gets a row of one table, and the others are
    None. Without tables it is called once. `on_timer(self, ctx, state...)` takes the same state in the same order.
    Both emit rows by `yield` or `ctx.collect`, and may be async.

    State travels with the rows: keep all data of a key in its state, and none in the instance, which several threads
    share.
    """

    name: ClassVar[str | None] = None
    """The name of the function; by default the class's name in snake case."""
    version: ClassVar[str] = "1"
    description: ClassVar[str | None] = None
    """The description that callers see; by default the docstring."""
    returns: ClassVar[GivenType | None] = None
    """The columns of the result: DDL such as "item string, count bigint", or a dataclass. One type without a name
    makes one column, `EXPR$0`. A list of Arrow fields may include `columns_of("input")` and
    `column_named_by("op", ...)`, which depend on the call. The default is eval's return annotation: Iterator[Alert]."""
    changelog_mode: ClassVar[ChangelogMode] = ChangelogMode()
    """The kinds of row that the function emits."""
    deterministic: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Any]] = {}
    """Defaults of call options, see `remote_udf.options.AGGREGATE_OPTIONS`."""


NARROW_COLUMNS, NARROW_NAMES = 64, 2_000
"""The maximum numbers of columns, and of characters in their names, of row classes that are cached in a large cache."""


class Row(tuple[Any, ...]):
    """A row: by position, by column name `row["score"]`, or by attribute `row.score`.

    Rows of tables have the names of the table's columns and the `kind` of change. To emit a change, make one:
    `Row("Bob", 12, kind=RowKind.UPDATE_AFTER)`. Two rows are equal if their values are.
    """

    __slots__ = ()
    names: ClassVar[tuple[str, ...]] = ()
    """The names of the columns; empty for a row that was created by position."""
    kind: ClassVar[RowKind] = RowKind.INSERT

    if TYPE_CHECKING:
        # The columns are those of a call. Only rows in the state can be changed.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...
        def __setitem__(self, key: int | str, value: Any) -> None: ...

    def __new__(cls, *values: Any, kind: RowKind | str = RowKind.INSERT, **named: Any) -> "Row":
        if values and named:
            raise TypeError("pass the values of a Row by position or by name, not both")
        if named:
            return row_class(tuple(named), RowKind(kind)).of(named.values())
        return tuple.__new__(_plain(RowKind(kind)), values)

    @classmethod
    def of(cls, values: Iterable[Any]) -> "Row":
        """Return a row of this class, by position."""
        return tuple.__new__(cls, values)

    @classmethod
    def all_of(cls, rows: Iterable[Iterable[Any]]) -> "list[Row]":
        """Return rows of this class, by position. Creates many rows without a Python call for each."""
        return list(map(tuple.__new__, itertools.repeat(cls), rows))

    def with_kind(self, kind: RowKind | str) -> "Row":
        """Return the same row with another kind of change."""
        made = row_class(self.names, RowKind(kind)) if self.names else _plain(RowKind(kind))
        return made.of(self)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            try:
                return tuple.__getitem__(self, self.names.index(key))
            except ValueError:
                raise KeyError(f"no column {key!r}, there are {', '.join(self.names)}") from None
        return tuple.__getitem__(self, key)

    def as_dict(self) -> dict[str, Any]:
        """Return the values by column name."""
        return dict(zip(self.names, self, strict=True))

    def __repr__(self) -> str:
        return shown(self)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return (_made, (self.names, self.kind, tuple(self)))


def _made(names: tuple[str, ...], kind: RowKind, values: Iterable[Any]) -> Row:
    return (row_class(names, kind) if names else _plain(kind)).of(values)


@functools.cache
def _plain(kind: RowKind) -> type[Row]:
    return type("Row", (Row,), {"__slots__": (), "kind": kind})


def row_class(names: tuple[str, ...], kind: RowKind = RowKind.INSERT) -> type[Row]:
    """The class of rows with these columns. Names that are valid in Python become attributes, except `kind`."""
    wide = len(names) > NARROW_COLUMNS or sum(map(len, names)) > NARROW_NAMES
    return _wide_class(names, kind) if wide else _narrow_class(names, kind)


def _made_class(names: tuple[str, ...], kind: RowKind) -> type[Row]:
    # The attributes of a named tuple are read in C, several times faster than properties.
    base = collections.namedtuple("Row", names, rename=True)  # type: ignore[misc]
    body = {
        "__slots__": (), "names": names, "kind": kind, "__new__": Row.__new__, "__getitem__": Row.__getitem__,
        "__repr__": Row.__repr__, "__reduce__": Row.__reduce__,
    }  # fmt: skip
    return type("Row", (base, Row), body)


# Names come from callers, and a class takes a thousand times as much memory as a short name: ten megabytes for the
# widest table that fits a schema. So few wide classes are cached.
_narrow_class = functools.lru_cache(maxsize=1024)(_made_class)
_wide_class = functools.lru_cache(maxsize=16)(_made_class)


def shown(value: Any) -> str:
    """A value as Flink prints it: rows as `+I[Bob, 12]`, None as `null`, lists in brackets, maps in braces."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Row):
        return f"{value.kind}[{', '.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{shown(key)}={shown(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    return str(value)
