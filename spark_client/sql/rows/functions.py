"""SqlFunctions: resolves the function names of a query to remote functions or Spark's own, and calls remote ones.

A name of a built-in function of Spark always means Spark's, so that no plugin changes the meaning of a query. A remote
function with such a name is called with its version, `` `median@1`(x) ``.
"""

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession

from remote_udf.errors import StreamError
from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.options import OnError
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import quoted
from spark_client.base.statistics import CallCost
from spark_client.functions.aggregate import AggregateExpression, RemoteAggregate
from spark_client.functions.arguments import require_count
from spark_client.functions.directory import Functions
from spark_client.functions.registered_names import carrier_of, registered_name, shown
from spark_client.functions.registration import (
    FusedFunctions,
    register_empty,
    register_function,
    register_lateral,
    register_once,
)
from spark_client.functions.scalar import RemoteFunction
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.substitutions import with_constants, with_names, with_shown_names

__all__ = ["SqlFunctions", "SqlSession"]

Kept = TypeVar("Kept")
_EMPTY = re.compile(r"\(\s*\)")
_BUILT_IN = "org.apache.spark.sql.catalyst.expressions."
_AGGREGATES = f"{_BUILT_IN}aggregate."
_OVER_AGGREGATES = frozenset({"grouping", "grouping_id"})
_VARYING = frozenset({
    "CallMethodViaReflection", "InputFileBlockLength", "InputFileBlockStart", "InputFileName",
    "MonotonicallyIncreasingID", "Rand", "RandStr", "Randn", "Shuffle", "SparkPartitionID", "TryReflect", "Uniform",
    "Uuid",
})  # fmt: skip
"""The classes of Spark's functions whose values may differ at each evaluation."""


@dataclass
class SqlSession:
    """What the queries of one remote session share."""

    spark: SparkSession
    functions: Functions
    function: Callable[[str, Mapping[str, object]], RemoteFunction | RemoteAggregate]
    """Returns the function with a name, given call options."""
    process: Callable[..., DataFrame]
    """`RemoteSession.process` with its scalar arguments as a mapping, and its TableOptions."""
    cost_of: Callable[[str], CallCost] = lambda _: CallCost()
    """Returns what the calls of a function, `name@version`, have cost in this session."""
    tasks: int | None = None
    """The number of tasks that run at once, if it is known."""
    condition_sample: int = 0
    """The number of rows for which conditions are computed to order them; 0 leaves them in the order of the text."""
    registered: dict[str, Mapping[str, object]] = field(default_factory=dict)
    """The options of functions that the user registered, by case-folded name: a query must not change them."""
    cascades: dict[str, Any] = field(default_factory=dict)
    """The functions that were made of two others, by the names that Spark knows them by."""
    fused: FusedFunctions = field(default_factory=FusedFunctions)
    classes: dict[str, str] = field(default_factory=dict)
    """The classes of functions in Spark, by case-folded name, which queries looked up."""
    _kept: dict[type, Any] = field(default_factory=dict)

    def kept(self, kind: type[Kept]) -> Kept:
        """The one object of a class that the session keeps for a package that adds to SQL."""
        return self._kept.setdefault(kind, kind())


class SqlFunctions:
    """Resolves and calls the functions of one session. Case does not matter. Any name may be "name@version"."""

    def __init__(self, session: SqlSession, *, estimate: bool = False) -> None:
        """`estimate` tells that the costs of the calls of the text are estimated."""
        self.session = session
        self.spark = session.spark
        self.functions = session.functions
        self.estimate = estimate
        self.scalar = functools.cache(self._as_registered)
        """The scalar function with the options of its registration."""
        self.can_be_fused = functools.cache(self._can_be_fused)
        """Whether a call with a number of arguments can be one of several in one operator."""
        self.once = functools.cache(self._once)
        """Registers a function as nondeterministic and returns the new name; None if equal calls may differ."""

    def remote(self, name: str) -> str | None:
        """The name of the remote function that `name` calls, "name" or "name@version"; None if it calls none.

        Raises UnknownFunction if the version does not exist, PlanError if the name is ambiguous.
        """
        plain, at, version = name.partition("@")
        known = {spec.name for spec in self.functions}
        same = [plain] if plain in known else sorted(each for each in known if each.casefold() == plain.casefold())
        if not same or (not at and self._class_of(name).startswith(_BUILT_IN)):
            return None
        if len(same) > 1:
            raise PlanError(f"function {name!r} could be {', '.join(same)}: write it as one of them")
        found = same[0] + at + version
        return found if self.functions.find(found) else None

    def kind(self, name: str) -> FunctionKind | None:
        """The kind of the remote function that `name` calls; None if it calls none."""
        found = self.remote(name)
        return self.functions.find(found).kind if found is not None else None

    def of_kind(self, kind: FunctionKind, names: Iterable[str]) -> list[str]:
        """The remote functions of a kind among these names, without repetitions."""
        called = dict.fromkeys(name for name in names if self.kind(name) is kind)
        return list(dict.fromkeys(found for name in called if (found := self.remote(name)) is not None))

    def is_remote_aggregate(self, name: str) -> bool:
        return self.kind(name) is FunctionKind.AGGREGATE

    def is_remote_scalar(self, name: str) -> bool:
        return self.kind(name) is FunctionKind.SCALAR

    def is_built_in(self, name: str) -> bool:
        """Whether a name is a function of Spark's."""
        return self._class_of(name).startswith(_BUILT_IN)

    def is_built_in_aggregate(self, name: str) -> bool:
        """Whether a name is an aggregate of Spark's, or `grouping` or `grouping_id`, which are used like aggregates."""
        known = self._class_of(name)
        # Some aggregates, of bitmaps and variants, stand outside the package of the others.
        return name.lower() in _OVER_AGGREGATES or known.startswith(_AGGREGATES) or known.endswith("Agg")

    def is_deterministic(self, name: str) -> bool | None:
        """Whether equal arguments give equal values, for Spark's planner; None if that is unknown."""
        found = self.remote(name)
        if found is not None:
            return self.functions.find(found).deterministic
        known = self._class_of(name)
        return known.rpartition(".")[2] not in _VARYING if known.startswith(_BUILT_IN) else None

    def _class_of(self, name: str) -> str:
        """The class that implements a function in Spark; "" if Spark does not have it."""
        # Spark's built-in functions stay the same while a session exists, and only they matter here, so functions
        # that users register later change no answer.
        key, known = name.casefold(), self.session.classes
        if key not in known:
            known[key] = _class_in_spark(self.spark, name)
        return known[key]

    def spec(self, name: str) -> FunctionSpec:
        """The declaration of a function. Raises UnknownFunction."""
        return self.functions.find(self.remote(name) or name)

    def aggregate(self, name: str, *arguments: Column | str) -> AggregateExpression:
        """The call of an aggregate. Raises PlanError for a wrong number of arguments."""
        function = self.session.function(name, self.session.registered.get(name.casefold(), {}))
        assert isinstance(function, RemoteAggregate)
        return function(*arguments)

    def with_options(self, name: str, options: Mapping[str, object]) -> RemoteFunction:
        """The scalar function with these options, whatever the options of its registration."""
        function = self.session.function(name, options)
        assert isinstance(function, RemoteFunction)
        return function

    def register(self, name: str) -> str:
        """Register a scalar function with Spark, with the options with which the user registered it.

        If the user did, another remote session of the same Spark session may have registered its own since. Returns
        the name with Spark, which `run` puts in place of the name.
        """
        return register_function(self._as_registered(name), registered_name(name))

    def run(self, sql: str, text: Text, fields: Mapping[str, object]) -> DataFrame:
        """Have Spark run SQL that was made of a text. Columns that it names after calls are named as in the text."""
        sent = with_names(sql, text.dialect, self._with_spark) if "@" in sql else sql
        # Spark takes no named parameters in fewer requests than no parameters.
        args = {} if text.args is None else text.args
        if sent == sql and not _EMPTY.search(sql):
            return self.spark.sql(sql, args=args, **fields)
        try:
            return with_shown_names(self.spark.sql(sent, args=args, **fields))
        except AnalysisException as error:
            if error.getCondition() == "UNSUPPORTED_SQL_UDF_USAGE":
                # A call without arguments is one of a SQL function, which Spark does not take in ORDER BY, for example.
                again = with_constants(sent, text.dialect, self._carrier)
            else:
                # A column `f@1(x)` is one of a table, or that of a call in a subquery.
                again = with_names(sql, text.dialect, self._with_spark, columns=True)
            if again == sent:
                raise
            return with_shown_names(self.spark.sql(again, args=args, **fields))

    def _carrier(self, name: str) -> str | None:
        return carrier_of(name) if self.is_remote_scalar(shown(name)) else None

    def _with_spark(self, name: str) -> str | None:
        found = self.remote(name) if "@" in name and self.is_remote_scalar(name) else None
        return None if found is None else registered_name(found)

    def lateral(self, name: str, options: Mapping[str, str] | None = None) -> str:
        """Register a scalar function for a lateral join, with these options of the join, and return its name there.

        Raises PlanError if the errors of its calls are columns, because only its values are joined.
        """
        function, known = self._as_registered(name), name.casefold()
        if options:
            given = {option.replace("-", "_"): value for option, value in options.items()}
            function = self.with_options(function.spec.key, {**function.options, **given})
            known = f"{known}_{hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:8]}"
        if function.plan(None).policy.on_error is OnError.COLUMN:
            raise PlanError(
                f"{function.spec.key} has on-error column, but only its values are joined in SQL; choose fail or null, "
                "or use remote.lateral_join"
            )
        if options or not function.spec.deterministic:
            return register_lateral(function, known)
        return self.register(self.remote(name) or name)

    def empty(self, name: str) -> str | None:
        """Register the call without arguments with Spark, and return its hidden name.

        None if the name is no scalar function, or if `register_empty` returns None. Raises PlanError if the function
        requires arguments.
        """
        if not self.is_remote_scalar(name):
            return None
        function = self._as_registered(name)
        require_count(function.spec, 0)
        return register_empty(function, name)

    def _once(self, name: str) -> str | None:
        return register_once(self._as_registered(name), name.casefold())

    def _can_be_fused(self, name: str, arguments: int) -> bool:
        function = self.scalar(name)
        spec = function.spec
        try:
            spec.check_count(arguments)
        except StreamError:
            return False
        return spec.deterministic and function.plan(arguments).policy.on_error in (OnError.FAIL, OnError.NULL)

    def _as_registered(self, name: str) -> RemoteFunction:
        return self.with_options(self.remote(name) or name, self.session.registered.get(name.casefold(), {}))


def _class_in_spark(spark: SparkSession, name: str) -> str:
    try:
        # PySpark takes tens of round trips to the JVM to convert an exception.
        found = spark.catalog.functionExists(quoted(name)) and spark.catalog.getFunction(quoted(name)).className
        return found or ""
    except PySparkException:
        return ""
