"""Functions of the sample with invalid declarations: an overloaded eval, a table for a scalar function."""

import typing
from typing import Annotated, Any

import udf_server as udf
from tests.conformance.cases import FunctionWords

__all__ = ["declared_wrongly"]


def declared_wrongly(words: FunctionWords, name: str) -> type[udf.ProcessTableFunction] | None:
    """Declares the function whose words describe an error; returns None for any other. Raises DeclarationError."""
    if any("two eval methods" in type_ for _, type_ in words.arguments):
        return _overloaded(name)
    if "ordinary table function" in words.behaviour:
        _takes_a_table(name)
    return None


def _overloaded(name: str) -> type[udf.ProcessTableFunction]:
    class Overloaded(udf.ProcessTableFunction):
        returns = "out string"

        @typing.overload
        def eval(self, i: int) -> Any: ...
        @typing.overload
        def eval(self, i: str) -> Any: ...
        def eval(self, i: object) -> Any:
            yield ("never called",)

    Overloaded.name = name
    return Overloaded


def _takes_a_table(name: str) -> None:
    @udf.scalar(name=name)
    def ordinary(r: Annotated[udf.Row, udf.ArgumentTrait.ROW_SEMANTIC_TABLE]) -> list[str]:
        return []
