"""Calls that have a value after others were computed only, in expressions of Spark: `F.round(mean("price"), 2)`.

For Spark such a call is a Column: one whose name identifies the call, and says what to do, because Spark shows it when
it does not find the column. A Column reveals its contents only as text, in which the name is found again. The planner
computes the call as a column of that name, and then the expressions around it.
"""

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeGuard, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, error_column
from spark_client.base.root_cause import COLUMN_VALUE
from spark_client.functions.column_calls import call_of

__all__ = ["ColumnValue", "computed", "error_of", "is_value", "shown", "values_in"]

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


class ColumnValue:
    """Base of calls that are columns with a name each, in sessions of Spark classic and of Connect."""

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
