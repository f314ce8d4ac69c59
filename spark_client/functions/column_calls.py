"""Calls of remote functions as columns of Spark, in which planners find the calls again, also inside expressions."""

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeGuard, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from remote_udf.functions import FunctionSpec
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, error_column
from spark_client.base.root_cause import COLUMN_VALUE
from spark_client.executor.engine.planned_calls import AnswerRule

__all__ = [
    "ColumnCall",
    "ColumnValue",
    "EarlierCall",
    "call_of",
    "computed",
    "error_of",
    "is_value",
    "shown",
    "values_in",
    "with_call",
]

_ATTRIBUTE = "_remote_udf_call"
_MOST = 10_000
"""Calls that are known by name. Spark keeps the name alone, so nothing tells when a call is not needed any more."""
_OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "mod", "rmod", "pow", "rpow", "neg", "invert",
    "getitem", "lt", "le", "gt", "ge", "eq", "ne", "and", "rand", "or", "ror",
)  # fmt: skip
_numbers = itertools.count(1)
_lock = threading.Lock()
_known: "dict[int, ColumnValue]" = {}

Named = TypeVar("Named", bound="ColumnValue")


@dataclass(frozen=True, eq=False)
class ColumnCall:
    """A call as the user wrote it. The arguments are columns, names of columns, or columns that are calls themselves.

    `alias` is the name that was given with Column.alias, or None. `value_field` is the field of the function's struct
    that is the value of the call; None if the value is all of it. With `earlier` the call is only made for the rows
    that another call does not answer.
    """

    spec: FunctionSpec
    arguments: tuple[object, ...]
    options: Mapping[str, object] = field(default_factory=dict)
    alias: str | None = None
    value_field: str | None = None
    earlier: "EarlierCall | None" = None


@dataclass(frozen=True, eq=False)
class EarlierCall:
    """A call that is made first, and which rows it answers."""

    call: ColumnCall
    rule: AnswerRule


def with_call(column: Column, call: ColumnCall) -> Column:
    """Store the call in the column, and in every column that its method `alias` returns. Returns the column."""
    kind = type(column)

    def alias(*names: str, **options: object) -> Column:
        renamed = kind.alias(column, *names, **options)
        return with_call(renamed, replace(call, alias=names[0] if len(names) == 1 else None))

    # The attributes are set on the instance, because the class is Spark's own, classic or Connect.
    vars(column).update({_ATTRIBUTE: call, "alias": alias, "name": alias})
    return column


def call_of(column: object) -> ColumnCall | None:
    """The call stored in a column, or None. Columns derived from a call, except its alias, store no call."""
    return vars(column).get(_ATTRIBUTE) if isinstance(column, Column) else None


class ColumnValue:
    """Base of calls that have a value after others were computed only, in expressions: `F.round(mean("price"), 2)`.

    For Spark, classic and Connect, such a call is a Column: one whose name identifies the call, and says what to do,
    because Spark shows it when it does not find the column. A Column reveals its contents only as text, in which the
    name is found again. The planner computes the call as a column of that name, and then the expressions around it.
    """

    @property  # type: ignore[misc] # Python does not require a setter
    def __class__(self) -> type:
        return _column_class(is_classic=isinstance(self._session(), SparkSession))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python asks of any object, such as a copy that has no fields yet
            raise AttributeError(name)
        return getattr(self.as_column(), name)

    def as_column(self) -> Column:
        """The value of the column with the name of the call, which Spark gives no name to, as to any other call."""
        value, name = F.coalesce(column_named(self.place())), self.given_name()
        return value if name is None else value.alias(name)

    def place(self) -> str:
        """The name, the same each time: the planner computes the call once, however often the object is used."""
        found = vars(self).get("_place")
        if found is None:
            with _lock:
                number = next(_numbers)
                _known[number] = self
                if len(_known) > _MOST:
                    del _known[next(iter(_known))]
            found = vars(self).setdefault("_place", f"{self.instead()} [call {number}]")
        return str(found)

    def _session(self) -> SparkSession:
        raise NotImplementedError

    def instead(self) -> str:
        """Who the call is, and what to do where Spark cannot evaluate it."""
        raise NotImplementedError

    def given_name(self) -> str | None:
        """The alias of the call; None if it has none."""
        raise NotImplementedError

    def own_text(self, frame: DataFrame) -> str:
        """The name of the column of the call without an alias."""
        raise NotImplementedError

    def column_name(self, frame: DataFrame) -> str:
        """The name of the column: its alias, or a name as Spark makes it, `my_avg(price)`."""
        return self.own_text(frame) if (name := self.given_name()) is None else name


def _operator(name: str) -> Any:
    def apply(self: ColumnValue, *others: object) -> Column:
        column: Column = getattr(self.as_column(), name)(*others)
        return column

    return apply


for _name in _OPERATORS:
    setattr(ColumnValue, f"__{_name}__", _operator(f"__{_name}__"))
ColumnValue.__hash__ = object.__hash__  # type: ignore[method-assign]


@cache
def _column_class(*, is_classic: bool) -> type:
    """The class of columns in sessions of Spark classic or of Connect."""
    return type(F.lit(True))


def values_in(expression: object, kind: type[Named]) -> dict[str, Named]:
    """The calls inside an expression, by the names of their columns. A call alone is no expression.

    Raises PlanError for a call of another kind, and for one that is not known any more.
    """
    found: dict[str, Named] = {}
    for call in _calls_in(expression):
        if not is_value(call, kind):
            raise PlanError(call.instead())
        found[call.place()] = call
    return found


def _calls_in(expression: object) -> Iterator[ColumnValue]:
    if (written := call_of(expression)) is not None:
        # Its arguments tell what its text does, for which Spark needs a request.
        for argument in written.arguments:
            yield from [argument] if is_value(argument) else _calls_in(argument)
    elif _known and isinstance(expression, Column) and not is_value(expression):
        for match in COLUMN_VALUE.finditer(str(expression)):
            call = _known.get(int(match[2]))
            if call is None or call.place() != match[0]:
                raise PlanError(f"a call of a remote aggregate was followed by {_MOST} others: make it again")
            yield call


def is_value(column: object, kind: type[Named] = ColumnValue) -> TypeGuard[Named]:  # type: ignore[assignment]
    """Whether a column is a call alone; `isinstance` is also true for what its `__class__` says."""
    return issubclass(type(column), kind)


def shown(frame: DataFrame, text: str, calls: Mapping[str, ColumnValue]) -> str:
    """A text of Spark, such as the name of a column, with the names that calls have for users."""
    for name, call in calls.items():
        if name in text:
            own = call.own_text(frame)
            text = text.replace(f"coalesce({name})", own).replace(name, own)
    return text


def computed(
    frame: DataFrame, columns: Iterable[Column], source: DataFrame, calls: Mapping[str, ColumnValue]
) -> DataFrame:
    """Select columns with expressions around calls. Raises PlanError if Spark cannot compute them from the frame.

    The calls are those of rows of `source`, after which they are named for users.
    """
    try:
        selected = frame.select(*columns)
        selected.columns  # noqa: B018 - Spark Connect analyzes a query when its columns are requested
    except AnalysisException as error:
        names = ", ".join(call.own_text(source) for call in calls.values())
        raise PlanError(
            f"an expression around {names} cannot be computed: it may have remote aggregates, literals, and columns of "
            "the result by name; give anything else, such as another aggregate, a column of its own, and compute in a "
            f"select after it. Spark says: {shown(source, str(error).splitlines()[0], calls)}"
        ) from None
    return selected


def error_of(frame: DataFrame, calls: Iterable[str]) -> Column | None:
    """The first error of calls that were computed in a frame, by their names; None if they have no error columns."""
    names = [name for name in map(error_column, calls) if name in frame.columns]
    return F.coalesce(*map(column_named, names)) if names else None
