"""What authors of process table functions derive from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from remote_udf.table_arguments import ChangelogMode

__all__ = ["ProcessTableFunction", "StateHint"]


@dataclass(frozen=True)
class StateHint:
    """Makes a parameter of `eval` a state entry: `count: Annotated[Count, StateHint(ttl="1 hour")]`.

    `ttl` counts from the last write. `type` gives the fields of a `Row` that serves as state, as DDL. With
    `broadcast` the entry is the same for all keys, and rows of broadcast tables change it.
    """

    ttl: str | None = None
    type: str | None = None
    broadcast: bool = False


class ProcessTableFunction:
    """Takes rows of tables one by one and emits rows; keeps state and timers by key (FLIP-440).

    `eval(self, ctx, state..., arguments...)` is called for each row. Its parameters say what they are: a
    ProcessContext, which may be left out; state entries, by StateHint or as ListView, MapView or ValueView;
    tables, by ArgumentTrait; all others are scalar arguments. With several tables all but the one whose row
    it is are None. Without tables it is called once. `on_timer(self, ctx, state...)` takes the same state in
    the same order. Both emit rows by `yield` or `ctx.collect`, and may be async.

    State travels with the rows: whatever is to be remembered of a key stands in it, and nothing in the
    instance, which several threads share.
    """

    name: ClassVar[str | None] = None
    """The class's name in snake case unless given."""
    version: ClassVar[str] = "1"
    description: ClassVar[str | None] = None
    """The docstring unless given."""
    returns: ClassVar[Any] = None
    """Columns of the result: DDL such as "item string, count bigint", or a dataclass. One type without a name
    makes one column, `EXPR$0`. A list of Arrow fields may hold `columns_of("input")` and
    `column_named_by("op", ...)`, which depend on the call.
    Otherwise eval's return annotation says it: Iterator[Alert]."""
    changelog_mode: ClassVar[ChangelogMode] = ChangelogMode()
    """Which kinds of row the function emits."""
    deterministic: ClassVar[bool] = True
    options: ClassVar[Mapping[str, Any]] = {}
    """Defaults of call options, see `remote_udf.options.AGGREGATE_OPTIONS`."""
