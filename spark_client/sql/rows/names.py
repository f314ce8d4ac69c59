"""Resolves the function names of a query to remote functions or Spark's own.

A name of a built-in function of Spark always means Spark's, so that no plugin changes the meaning of a query. A remote
function with such a name is called with its version, `` `median@1`(x) ``.
"""

from collections.abc import Iterable

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from remote_udf.functions import FunctionKind
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import quoted
from spark_client.functions.directory import Functions

__all__ = ["FunctionNames"]

_BUILT_IN = "org.apache.spark.sql.catalyst.expressions."
_AGGREGATES = f"{_BUILT_IN}aggregate."
_OVER_AGGREGATES = frozenset({"grouping", "grouping_id"})
_VARYING = frozenset({
    "CallMethodViaReflection", "InputFileBlockLength", "InputFileBlockStart", "InputFileName",
    "MonotonicallyIncreasingID", "Rand", "RandStr", "Randn", "Shuffle", "SparkPartitionID", "TryReflect", "Uniform",
    "Uuid",
})  # fmt: skip
"""The classes of Spark's functions whose values may differ at each evaluation."""


class FunctionNames:
    """The meaning of names in one Spark session with the functions of one server. Case does not matter."""

    def __init__(self, spark: SparkSession, functions: Functions, classes: dict[str, str]) -> None:
        """`classes` has the classes of the names that were looked up before; new ones are added."""
        self.spark = spark
        self.functions = functions
        self._classes = classes

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
        key = name.casefold()
        if key not in self._classes:
            self._classes[key] = _class_in_spark(self.spark, name)
        return self._classes[key]


def _class_in_spark(spark: SparkSession, name: str) -> str:
    try:
        # PySpark takes tens of round trips to the JVM to convert an exception.
        found = spark.catalog.functionExists(quoted(name)) and spark.catalog.getFunction(quoted(name)).className
        return found or ""
    except PySparkException:
        return ""
