"""AnyFunction: the type of a function if its kind is not known to type checkers."""

from typing import Any, Protocol, Unpack

from remote_udf.functions import FunctionSpec
from remote_udf.option_types import CallOptions

__all__ = ["AnyFunction"]


class AnyFunction(Protocol):
    """A RemoteFunction, whose calls are Columns, or a RemoteAggregate, whose calls are AggregateExpressions."""

    @property
    def spec(self) -> FunctionSpec:
        """The name, the version, the kind and the types of the function."""
        ...

    def with_options(self, **options: Unpack[CallOptions]) -> "AnyFunction":
        """Return the function with call options."""
        ...

    def __call__(self, *arguments: object, **named: object) -> Any:
        """Return a call with columns, names of columns or literals as arguments."""
        ...
