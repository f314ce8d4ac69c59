"""The base class of process table functions, and the declaration of their state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from remote_udf.table_arguments import ChangelogMode
from udf_server.base.annotations import GivenType

__all__ = ["ProcessTableFunction", "StateHint"]


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
