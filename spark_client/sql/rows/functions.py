"""SqlFunctions: resolves names in SQL to remote functions and calls them."""

import functools
from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, SparkSession

from remote_udf.errors import StreamError
from remote_udf.functions import FunctionSpec
from remote_udf.options import OnError
from spark_client.base.errors import PlanError, UnknownFunction
from spark_client.base.options import session_options
from spark_client.functions.aggregate import AggregateExpression, RemoteAggregate
from spark_client.functions.directory import Functions
from spark_client.functions.fused import FusedFunctions
from spark_client.functions.registration import register_empty, register_function, register_lateral, register_once
from spark_client.functions.scalar import RemoteFunction, plan_call
from spark_client.sql.rows.models import Model, outputs_of, require_scalar
from spark_client.sql.rows.names import FunctionNames

__all__ = ["SqlFunctions"]


class SqlFunctions(FunctionNames):
    """Resolves and calls the functions of one session. Every name may have a version: "name@version"."""

    def __init__(
        self, spark: SparkSession, functions: Functions, registered: Mapping[str, Mapping[str, object]],
        classes: dict[str, str],
        function: Callable[[str, Mapping[str, object]], RemoteFunction | RemoteAggregate],
        process: Callable[..., DataFrame], fused: FusedFunctions, models: dict[str, Model],
    ) -> None:  # fmt: skip
        """`function` returns the function with a name, given call options; `process` is that of `RemoteSession`.
        `models` has the models of the session by case-folded name.

        `registered` contains the options of functions by the names under which the user registered them, casefolded.
        """
        super().__init__(spark, functions, classes)
        self._function = function
        self._process = process
        self._registered = registered
        self.fused = fused
        self.models = models
        self.scalar = functools.cache(self._as_registered)
        """The scalar function with the options of its registration."""
        self.can_be_fused = functools.cache(self._can_be_fused)
        """Whether a call with a number of arguments can be one of several in one operator."""
        self.once = functools.cache(self._once)
        """Registers a function as nondeterministic and returns the new name; None if equal calls may differ."""

    def spec(self, name: str) -> FunctionSpec:
        """The declaration of a function. Raises UnknownFunction."""
        return self.functions.find(self.remote(name) or name)

    def aggregate(self, name: str, *arguments: Column | str) -> AggregateExpression:
        """The call of an aggregate. Raises PlanError for a wrong number of arguments."""
        function = self._function(name, {})
        assert isinstance(function, RemoteAggregate)
        return function(*arguments)

    def with_options(self, name: str, options: Mapping[str, object]) -> RemoteFunction:
        """The scalar function with these options, whatever the options of its registration."""
        function = self._function(name, options)
        assert isinstance(function, RemoteFunction)
        return function

    def model(self, name: str) -> Model:
        """The model with this name, or the scalar function with this name. Raises PlanError if there is neither."""
        model = self.models.get(name.casefold())
        if model is not None:
            return model
        try:
            spec = self.spec(name)
        except UnknownFunction as error:
            known = ", ".join(model.name for model in self.models.values()) or "none"
            raise PlanError(f"there is no model {name!r}: this session has {known}; as a function, {error}") from None
        require_scalar(spec)
        return Model(name, spec.key, outputs_of(spec, None, name))

    def process(
        self, name: str, tables: Mapping[str, DataFrame], scalars: Mapping[str, object], **call: object
    ) -> DataFrame:
        """Call a process table function, as `RemoteSession.process` does."""
        return self._process(name, tables, scalars, **call)

    def register(self, name: str) -> None:
        """Register a scalar function with Spark by its name, with the options with which the user registered it.

        If the user did, another remote session of the same Spark session may have registered its own since.
        """
        register_function(self._as_registered(name), name)

    def lateral(self, name: str) -> str:
        """Register a scalar function for a lateral join, and return its name there.

        Raises PlanError if the errors of its calls are columns, because only its values are joined.
        """
        function = self._as_registered(name)
        session = session_options(self.spark, function.spec.kind, function.spec.name)
        call = plan_call(function.spec, function.config, None, function.options, session)
        if call.policy.on_error is OnError.COLUMN:
            raise PlanError(
                f"{function.spec.key} has on-error column, but only its values are joined in SQL; choose fail or null, "
                "or use remote.lateral_join"
            )
        if not function.spec.deterministic:
            return register_lateral(function, name.casefold())
        found = self.remote(name) or name
        self.register(found)
        return found

    def empty(self, name: str) -> str | None:
        """Register the call without arguments with Spark, and return its hidden name.

        None if the name is no scalar function, or if `register_empty` returns None. Raises PlanError if the function
        requires arguments.
        """
        if not self.is_remote_scalar(name):
            return None
        function = self._as_registered(name)
        try:
            function.spec.check_count(0)
        except StreamError as error:
            raise PlanError(error.message) from None
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
        session = session_options(self.spark, spec.kind, spec.name)
        call = plan_call(spec, function.config, arguments, function.options, session)
        return spec.deterministic and call.policy.on_error in (OnError.FAIL, OnError.NULL)

    def _as_registered(self, name: str) -> RemoteFunction:
        return self.with_options(self.remote(name) or name, self._registered.get(name.casefold(), {}))
