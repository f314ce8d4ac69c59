"""Signature reads the types of a scalar function from the author's code and what its declaration gives."""

import functools
import inspect
import operator
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from remote_udf.functions import Execution, Parameter
from remote_udf.types import spelled
from udf_server.base.context import BatchContext, CallContext
from udf_server.base.errors import DeclarationError, Failure
from udf_server.declaring.annotations import (
    AuthorCode,
    GivenType,
    array_type,
    codecs_for,
    hints_of_code,
    signature_of,
    type_given,
)
from udf_server.declaring.returned_rows import row_of, type_of_row
from udf_server.values.codecs import Codec
from udf_server.values.values import ListCodec, codec_for_type

__all__ = ["Signature", "SignatureColumn", "fields_of", "types_given"]


@dataclass(frozen=True)
class SignatureColumn:
    """One parameter that takes arguments."""

    name: str
    codecs: list[Codec]
    required: bool
    variadic: bool

    @property
    def type(self) -> pa.DataType:
        """The type of its arguments; a union if it accepts several."""
        types = [codec.type for codec in self.codecs]
        if len(types) == 1:
            return types[0]
        return pa.dense_union([pa.field(str(index), type_) for index, type_ in enumerate(types)])

    @classmethod
    def of(cls, parameter: inspect.Parameter, codecs: list[Codec]) -> "SignatureColumn":
        """A parameter of code, with its types."""
        variadic = parameter.kind is parameter.VAR_POSITIONAL
        return cls(parameter.name, codecs, parameter.default is parameter.empty and not variadic, variadic)


def fields_of(columns: Sequence[SignatureColumn]) -> dict[str, typing.Any]:
    """The fields of a FunctionSpec that describe its parameters."""
    return {
        "parameters": tuple(Parameter(column.name, column.type) for column in columns),
        "required_parameters": sum(column.required for column in columns),
        "variadic": any(column.variadic for column in columns),
    }


def types_given(given: str | Mapping[str, GivenType] | None, where: str) -> dict[str, GivenType] | None:
    """The types of parameters by name that `parameters` of a declaration gives; None if it gives none."""
    if isinstance(given, str):
        struct = type_given(f"struct<{given}>", f"{where}, parameters") if given.strip() else pa.struct([])
        assert struct is not None
        return {field.name: field.type for field in struct}
    if given is not None and not isinstance(given, Mapping):
        raise DeclarationError(f"{where}: 'parameters' must be a string or a mapping from name to type, not {given!r}")
    return dict(given) if given is not None else None


class Signature:
    """The parameters and the result of the code of one function, which `where` names in messages."""

    def __init__(self, where: str, code: AuthorCode, many: Execution | None, rows: bool) -> None:
        """`many` is the execution of a function that is called for many rows. `rows` tells that it returns rows."""
        generator = inspect.unwrap(code)
        if inspect.isgeneratorfunction(generator) or inspect.isasyncgenfunction(generator):
            if not rows:
                raise DeclarationError(
                    f"{where}: is a generator; a scalar function returns one value per row, or declare rows=True"
                )
            if many is not None:
                raise DeclarationError(f"{where}: is a generator; a {many} function returns the rows of many calls")
        self._where = where
        self._rows = rows
        self._hints = hints_of_code(code, where)
        self._signature = list(signature_of(code, where).parameters.values())
        contexts = [p.name for p in self._signature if self._hints.get(p.name) in (CallContext, BatchContext)]
        if len(contexts) > 1:
            raise DeclarationError(
                f"{where}: {contexts[0]!r} and {contexts[1]!r} are both declared as the call context"
            )
        self.context_parameter = contexts[0] if contexts else None
        positions = (
            place for place, p in enumerate(self._signature) if p.name in contexts and p.kind != p.KEYWORD_ONLY
        )
        self.context_position = next(positions, None)
        self.takes_batch_context = bool(contexts) and self._hints[contexts[0]] is BatchContext
        if self.takes_batch_context and many is None:
            raise DeclarationError(
                f"{where}, parameter {contexts[0]!r}: a BatchContext is for vectorized and batched functions; a call "
                "for one row has a CallContext"
            )
        asynchronous = inspect.iscoroutinefunction(code)
        self.execution = many or (Execution.ASYNC_ROWS if asynchronous else Execution.THREADED_ROWS)

    def parameters(self, given: str | Mapping[str, GivenType] | None) -> list[SignatureColumn]:
        """The parameters that take arguments, with the types that are given, or else of the annotations."""
        explicit = types_given(given, self._where)
        columns = []
        for parameter in self._signature:
            where = f"{self._where}, parameter {parameter.name!r}"
            if parameter.name == self.context_parameter:
                if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                    raise DeclarationError(f"{where}: the call context is passed by name or in its place")
                continue
            if parameter.kind is parameter.VAR_KEYWORD or parameter.kind is parameter.KEYWORD_ONLY:
                raise DeclarationError(f"{where}: arguments are passed by position only")
            if explicit is not None and parameter.name in explicit:
                wanted = explicit.pop(parameter.name)
            elif parameter.name in self._hints:
                wanted = self._of_row(self._hints[parameter.name], where)
            else:
                raise DeclarationError(f"{where}: has no type: annotate it or give 'parameters'")
            columns.append(SignatureColumn.of(parameter, self._codecs(wanted, where)))
        if explicit:
            raise DeclarationError(f"{self._where}: 'parameters' names {', '.join(explicit)}, which it does not have")
        if self.execution.by_batch and not columns and self.context_parameter is None:
            raise DeclarationError(
                f"{self._where}: a {self.execution} function without arguments needs a CallContext to know "
                "its number of rows"
            )
        return columns

    def result(self, given: GivenType | None) -> Codec:
        """The codec of a row's value."""
        where = f"{self._where}, result"
        wanted = given if given is not None else self._hints.get("return")
        if wanted is None:
            raise DeclarationError(f"{where}: has no type: annotate it or give 'returns'")
        if given is None:
            wanted = _without_failure(self._of_row(wanted, where))
        if self._rows:
            wanted = row_of(wanted, where) if given is None else type_of_row(given, where)
        codecs = self._codecs(wanted, where)
        if len(codecs) > 1:
            raise DeclarationError(f"{where}: {wanted} is a union; a result has one type")
        if pa.types.is_null(codecs[0].type):
            raise DeclarationError(f"{where}: a function in a query must return a value")
        if self._rows and not (pa.types.is_struct(codecs[0].type) and codecs[0].type.num_fields):
            raise DeclarationError(
                f"{where}: a row has columns, so its type is a dataclass, a NamedTuple or a text such as "
                f"'name string, price double', not {spelled(codecs[0].type)}"
            )
        return ListCodec(codecs[0]) if self._rows else codecs[0]

    def _of_row(self, wanted: GivenType, where: str) -> GivenType:
        """The annotation of one row: the element of a list function's list."""
        if self.execution is not Execution.BATCHED:
            return wanted
        if typing.get_origin(wanted) not in (list, Sequence) or len(typing.get_args(wanted)) != 1:
            shown = wanted.__name__ if isinstance(wanted, type) else wanted
            raise DeclarationError(
                f"{where}: a batched function takes and returns a list with one element per row, so write "
                f"list[...] with the type of a row, not {shown}"
            )
        return typing.get_args(wanted)[0]

    def _codecs(self, wanted: GivenType, where: str) -> list[Codec]:
        """A vectorized function may be annotated with typed array classes, or Annotated ones."""
        if self.execution is not Execution.VECTORIZED:
            return codecs_for(wanted, where)
        if (type_ := array_type(wanted)) is not None:
            return [codec_for_type(type_)]
        base, *notes = typing.get_args(wanted) if typing.get_origin(wanted) is typing.Annotated else (wanted,)
        for note in notes:
            if (type_ := type_given(note, where)) is not None:
                return [codec_for_type(type_)]
        if isinstance(base, type) and issubclass(base, (pa.Array, pa.ChunkedArray)):
            raise DeclarationError(
                f"{where}: {base.__name__} does not say the type of its values; give a DDL or Arrow type, "
                "or an array class such as pa.Int64Array"
            )
        return codecs_for(wanted, where)


def _without_failure(wanted: GivenType) -> GivenType:
    """The annotation of a result without the Failures that may be in place of values."""
    members = typing.get_args(wanted)
    if Failure not in members or typing.get_origin(wanted) not in (typing.Union, types.UnionType):
        return wanted
    return functools.reduce(operator.or_, [member for member in members if member is not Failure])
