"""AggregateQuery: the contents of a GROUP BY, checked and with resolved options."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from remote_udf.options import AggregatePlan, OnError
from remote_udf.row_kinds import ROW_KIND
from remote_udf.segments import AppliedField
from spark_client.base.calls import AggregateCall
from spark_client.base.changelogs import kind_column, require_retract
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import hidden, identifiers_of, unique_names
from spark_client.base.settings import reads_stream
from spark_client.base.types import arrow_type
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.functions.aggregate import AggregateExpression
from spark_client.functions.arguments import column_of, require_arguments
from spark_client.planning.aggregate.builtins import Builtin
from spark_client.planning.key_columns import has_floats, normalized, require_sorting
from spark_client.planning.scans import fields_of
from spark_client.windows.columns import WINDOW_END, WINDOW_START

__all__ = ["BY_PLAN", "UPDATES", "AggregateQuery", "GroupBy", "Remote", "Strategy", "asked_plan"]

BY_PLAN = " by plan "
"""Between the name of a function and its plan, in the names of operators."""
UPDATES = hidden("updates")
"""The hidden column that says whether a row, or a row in an accumulator, causes its group to be emitted."""


@dataclasses.dataclass(frozen=True)
class GroupBy:
    """The arguments of a GROUP BY. `sets` are the grouping sets as positions of keys; None without grouping sets."""

    frame: DataFrame
    keys: Sequence[Column | str]
    sets: Sequence[Sequence[int]] | None
    order_by: Sequence[Column | str]
    changelog: bool | None
    """Whether the frame is a changelog; None if its columns decide."""
    spread: "Spread | None" = None
    """Transforms accumulators before the shuffle; receives the names of their keys."""
    zone: str | None = None
    """The time zone of the windows of a stream; see `spark_client.windows.columns.zone_of`."""
    titles: Sequence[str] | None = None
    """The names of the keys in the result, which no function sees; by default those in the frame."""
    set_number: str | None = None
    """The column of the result after the keys with the position of the grouping set; None if nobody reads it."""
    updates: Column | None = None
    """Whether a row causes its group to be emitted; None if every group is emitted."""

    def __post_init__(self) -> None:
        if not self.keys and len(self.sets or ()) > 1:
            raise PlanError("GROUPING SETS: several empty sets repeat one row: write () once, or a set that has a key")


Spread = Callable[[DataFrame, Sequence[str]], DataFrame]


class Strategy(Enum):
    """How the rows of a key are gathered."""

    PARTIAL = auto()
    """Accumulators of bundles, merged after the shuffle."""
    CHAIN = auto()
    """Rows sorted by key; the accumulator goes from bundle to bundle."""
    ROWS = auto()
    """Spark gathers the rows; the function receives them in one segment."""


@dataclasses.dataclass(eq=False)
class Remote:
    """A planned remote aggregate. It refers to columns of step (a) by name."""

    expression: AggregateExpression
    name: str
    call: AggregateCall
    strategy: Strategy
    position: int
    arguments: list[str]
    condition: str | None

    @property
    def accumulator(self) -> str:
        return hidden(f"accumulator_{self.position}")

    @property
    def error(self) -> str:
        return hidden(f"error_{self.position}")

    @property
    def keeps_errors(self) -> bool:
        """Whether errors become values of the result instead of failing the job."""
        return self.call.policy.on_error is not OnError.FAIL

    def applying(self, *applied: AppliedField) -> AggregateCall:
        return dataclasses.replace(self.call, applied=applied)

    def over(self, place: Mapping[str, int], applied: AppliedField) -> AggregateInput:
        """The call over rows whose columns are at these places."""
        condition = None if self.condition is None else place[self.condition]
        return AggregateInput(self.applying(applied), tuple(place[name] for name in self.arguments), condition)


def asked_plan(remotes: Sequence[Remote]) -> AggregatePlan:
    """The option `aggregate-plan` of the calls. Raises PlanError if they have different ones."""
    asked = {remote.expression.asked_plan for remote in remotes} - {AggregatePlan.AUTO}
    if len(asked) > 1:
        raise PlanError(
            f"aggregate-plan: one GROUP BY has one plan, and its calls ask for {' and '.join(sorted(asked))}; give "
            "them the same value"
        )
    return next(iter(asked), AggregatePlan.AUTO)


class AggregateQuery:
    """A checked GROUP BY. `key_names` are the user's names, `keys` the hidden columns with the values."""

    def __init__(
        self, group_by: GroupBy, expressions: Sequence[AggregateExpression | Column], *,
        known: Mapping[int, Builtin] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`known` contains the recognised aggregates of Spark, by `id()` of their column."""
        self.frame = frame = group_by.frame
        self.expressions = expressions
        self.builtins = [each for each in expressions if not isinstance(each, AggregateExpression)]
        self.order_by = list(group_by.order_by)
        self._spread = group_by.spread
        self.zone = group_by.zone
        self.kind = self._kind_column(group_by.changelog)
        if self.kind is not None and not reads_stream(frame) and not self.order_by:
            # A DataFrame is ordered by partition, then by position in the partition.
            self.order_by = [F.monotonically_increasing_id()]
        key_fields = fields_of(frame, group_by.keys) if group_by.keys else []
        self.key_names = [field.name for field in key_fields]
        self.titles = list(group_by.titles or self.key_names)
        """The names of the keys in the result, and of the number of the grouping set if it is read."""
        self.keys = [hidden(f"key_{index}") for index in range(len(self.key_names))]
        self.conditions: dict[str, Column] = {}
        """Columns of step (a) that select the rows of an aggregate. Columns in `hidden` may refer to them."""
        self.hidden: dict[str, str | Column] = {}
        """Columns of step (a) that the frame does not have, or has under the name that is given."""
        self.own_names: Mapping[str, str] = {}
        """The frame's names of columns of step (a), for those that step (a) finds under these names."""
        self.shown_calls: Sequence[str] = ()
        """The calls and how they are planned, for Spark's plan."""
        # Without keys there is a single group, so the grouping set does not matter.
        self.sets = group_by.sets if group_by.keys else None
        if self.sets is not None and group_by.set_number is not None:
            self.titles.append(group_by.set_number)
        for field in key_fields:
            arrow_type(field.dataType, f"key {field.name!r}")
        for name, key, field in zip(self.keys, group_by.keys, key_fields, strict=True):
            self.hidden[name] = normalized(column_of(key), field.dataType) if has_floats(field.dataType) else key
        self.remotes = self._planned()
        self.only_updated = group_by.updates is not None
        """Whether groups are skipped if no row of theirs has UPDATES."""
        self.passes_rows = bool(self.builtins) or any(r.strategy is Strategy.ROWS for r in self.remotes)
        if group_by.updates is not None and self._spread is None:
            # Accumulators do not contain this column, so Spark must see the rows.
            self.hidden[UPDATES] = group_by.updates
            self.passes_rows = True
        if self.kind is not None and any(id(each) not in known for each in self.builtins):
            raise PlanError(
                "Spark's own aggregates cannot retract rows: on a changelog use remote ones, or aggregate the "
                "table it describes"
            )

    @property
    def windowed(self) -> bool:
        """Whether the keys are a window's. Such a group is emitted even if more rows were retracted than added."""
        return {WINDOW_START, WINDOW_END} <= identifiers_of(self.frame).keys(self.key_names)

    @property
    def shows_values_only(self) -> bool:
        """Whether the result has the keys, a value for each call, and nothing else, under different names."""
        names = [*self.titles, *(remote.name for remote in self.remotes)]
        plain = self.sets is None and not any(remote.keeps_errors for remote in self.remotes)
        return plain and len(set(names)) == len(names)

    @property
    def chained(self) -> bool:
        """Whether rows are sorted by key."""
        return any(remote.strategy is Strategy.CHAIN for remote in self.remotes)

    @property
    def group_keys(self) -> list[str]:
        """The hidden columns by which rows are grouped."""
        if self.sets is None:
            return self.keys
        return [*(f"{key}_in_set" for key in self.keys), hidden("grouping_id")]

    def spread(self, partial: DataFrame) -> DataFrame:
        """The accumulators in the form in which they are shuffled."""
        return partial if self._spread is None else self._spread(partial, self.group_keys)

    @property
    def has_panes(self) -> bool:
        """Whether accumulators are copied to several groups before the shuffle."""
        return self._spread is not None

    @property
    def unique_key_names(self) -> list[str]:
        """The names of the key columns that the function sees."""
        return unique_names(self.key_names)

    @property
    def shown_key_names(self) -> tuple[str, ...]:
        """The same names, followed by the grouping set, which is also part of the key."""
        return (*self.unique_key_names, *(["grouping"] if self.sets is not None else []))

    def _kind_column(self, changelog: bool | None) -> str | None:
        found = kind_column(self.frame)
        if changelog and found is None:
            raise PlanError(f"no column {ROW_KIND!r} or '_change_type' makes this a changelog")
        if found is None or changelog is False:
            return None
        require_retract(self.frame, "aggregates over a changelog")
        return found

    def _planned(self) -> list[Remote]:
        remotes = []
        for position, expression in enumerate(self.expressions):
            if not isinstance(expression, AggregateExpression):
                continue
            self._refuse_retraction(expression)
            condition = None
            if (only := expression.condition_column()) is not None:
                condition = hidden(f"condition_{position}")
                self.conditions[condition] = only
            names = []
            types = self._argument_types(expression)
            columns = expression.columns(condition)
            for index, (column, type_) in enumerate(zip(columns, types, strict=True)):
                if expression.is_distinct:
                    require_sorting(type_, f"call of {expression.spec.key}, DISTINCT argument {index + 1}")
                names.append(hidden(f"argument_{position}_{index}"))
                normal = expression.is_distinct and has_floats(type_)
                self.hidden[names[-1]] = normalized(column_of(column), type_) if normal else column
            call = expression.plan((AppliedField.ACCUMULATOR,))
            name = expression.column_name(self.frame)
            strategy = self._strategy(expression)
            remotes.append(Remote(expression, name, call, strategy, position, names, condition))
        if any(remote.strategy is Strategy.CHAIN for remote in remotes):
            for remote in remotes:
                if remote.strategy is Strategy.PARTIAL:
                    remote.strategy = Strategy.CHAIN
        return remotes

    def _refuse_retraction(self, expression: AggregateExpression) -> None:
        if self.kind is not None and not expression.spec.supports_retracting:
            raise PlanError(
                f"Retract functionality is not implemented for the aggregate function: {expression.spec.key}; its "
                f"input is a changelog (column {self.kind!r})"
            )
        if self.kind is not None and expression.is_distinct:
            raise PlanError(f"call of {expression.spec.key}: DISTINCT over a changelog is not supported")

    def _strategy(self, expression: AggregateExpression) -> Strategy:
        if expression.is_distinct:
            return Strategy.ROWS
        if expression.spec.supports_merging and not self.order_by:
            return Strategy.PARTIAL
        # Rows that Spark's own aggregates need as well are gathered, and sorted then.
        gathered = reads_stream(self.frame) or (self.kind is not None and bool(self.builtins))
        return Strategy.ROWS if gathered else Strategy.CHAIN

    def _argument_types(self, expression: AggregateExpression) -> list[T.DataType]:
        """Check the arguments and return their types."""
        fields = fields_of(self.frame, expression.arguments) if expression.arguments else []
        require_arguments(expression.spec, fields)
        return [field.dataType for field in fields]
