"""AnyFunction: what is known of a function of which only the name is."""

from typing import Any, Protocol, Unpack

from remote_udf.functions import FunctionSpec
from spark_client.base.option_types import CallOptions

__all__ = ["AnyFunction"]


class AnyFunction(Protocol):
    """A RemoteFunction or a RemoteAggregate. Its kind says what a call is: a Column or an AggregateExpression."""

    @property
    def spec(self) -> FunctionSpec:
        """Name, version, kind and types."""
        ...

    def with_options(self, **options: Unpack[CallOptions]) -> "AnyFunction":
        """The same function with call options set."""
        ...

    def __call__(self, *arguments: object, **named: object) -> Any:
        """The call over columns, names of columns or literals."""
        ...
