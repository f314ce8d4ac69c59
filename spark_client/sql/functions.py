"""SqlFunctions: the remote functions of one session as SQL calls them."""

import functools
from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, SparkSession

from remote_udf.functions import FunctionSpec
from spark_client.functions.aggregate import AggregateExpression, RemoteAggregate
from spark_client.functions.directory import Functions
from spark_client.functions.registration import register_empty, register_function, register_once
from spark_client.functions.scalar import RemoteFunction
from spark_client.sql.names import FunctionNames

__all__ = ["SqlFunctions"]


class SqlFunctions(FunctionNames):
    """What names mean in SQL, and calls of what they mean. Every name may have a version: "name@version"."""

    def __init__(
        self, spark: SparkSession, functions: Functions, registered: Mapping[str, Mapping[str, object]],
        function: Callable[[str, Mapping[str, object]], RemoteFunction | RemoteAggregate],
        process: Callable[..., DataFrame],
    ) -> None:  # fmt: skip
        """`function` gives the function of a name with call options; `process` is `RemoteSession.process`.

        `registered` has the options of functions by the names that the user gave them, without regard to case.
        """
        super().__init__(spark, functions)
        self._function = function
        self._process = process
        self._registered = registered
        self.once = functools.cache(self._once)
        """Registers a function as nondeterministic and returns its name then; None for one whose calls may differ."""

    def spec(self, name: str) -> FunctionSpec:
        """Raises UnknownFunction."""
        return self.functions.find(self.remote(name) or name)

    def aggregate(self, name: str, *arguments: Column | str) -> AggregateExpression:
        """The call of an aggregate. Raises PlanError for a wrong number of arguments."""
        function = self._function(name, {})
        assert isinstance(function, RemoteAggregate)
        return function(*arguments)

    def process(self, name: str, tables: Mapping[str, DataFrame], /, **call: object) -> DataFrame:
        """As `RemoteSession.process`."""
        return self._process(name, tables, **call)

    def register(self, name: str) -> None:
        """Makes a scalar function known to Spark by its name, unless the user did."""
        if name.casefold() not in self._registered:
            register_function(self._function(name, {}), name)

    def empty(self, name: str) -> str | None:
        """Makes the call without arguments known to Spark, and returns what it is called then.

        None for a name that is no scalar function's, and as `register_empty`.
        """
        return register_empty(self._as_registered(name), name) if self.is_remote_scalar(name) else None

    def _once(self, name: str) -> str | None:
        return register_once(self._as_registered(name), name.casefold())

    def _as_registered(self, name: str) -> RemoteFunction:
        function = self._function(self.remote(name) or name, self._registered.get(name.casefold(), {}))
        assert isinstance(function, RemoteFunction)
        return function
