"""Aggregate functions as the server holds them. Everything is checked here, when the plugin is loaded."""

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from remote_udf.functions import FunctionKind
from remote_udf.segments import AppliedField
from udf_server.aggregate.base import AggregateFunction, BundledAggregateFunction, VectorizedAggregateFunction
from udf_server.base.context import CallContext
from udf_server.base.errors import DeclarationError
from udf_server.declaring.annotations import (
    AuthorCode,
    GivenType,
    codecs_for,
    hints_of_code,
    signature_of,
)
from udf_server.declaring.functions import Function, implementation_of
from udf_server.declaring.signature import SignatureColumn, fields_of, types_given
from udf_server.values.codecs import Codec
from udf_server.values.values import ListCodec

__all__ = ["Aggregate", "declare_aggregate", "is_aggregate"]

_BASES = (AggregateFunction, BundledAggregateFunction, VectorizedAggregateFunction)


@dataclass(kw_only=True)
class Aggregate(Function):
    """An aggregate function. `call` is what the server calls: `bundled_accumulate_retract`, or a verb."""

    implementation: AggregateFunction
    accumulator: Codec

    @functools.cached_property
    def applied_codecs(self) -> Mapping[AppliedField, Codec]:
        """The codec of each part of a result."""
        return {
            AppliedField.ACCUMULATOR: self.accumulator, AppliedField.STARTING_VALUE: self.result,
            AppliedField.FINAL_VALUE: self.result, AppliedField.UPDATED_VALUES: ListCodec(self.result),
        }  # fmt: skip


def is_aggregate(value: object) -> bool:
    """Whether a plugin may return this as an aggregate function: an instance, or a class made without arguments."""
    if isinstance(value, type):
        return issubclass(value, AggregateFunction) and value not in _BASES
    return isinstance(value, AggregateFunction)


def declare_aggregate(given: AggregateFunction | type[AggregateFunction]) -> Aggregate:
    """The function, checked. Raises DeclarationError, naming function and parameter."""
    made = implementation_of(given)
    implementation, where = made.instance, made.where
    bundling = implementation.supports_bundling()
    vectorized = isinstance(implementation, VectorizedAggregateFunction)
    wanted = _require_verbs(where, implementation, bundling, vectorized)
    call = _call(implementation, bundling, vectorized)
    types = _Types(where, implementation, bundling)
    parameters = types.parameters()
    result, accumulator = types.result(), types.accumulator()
    context = _context_parameter(where, call) if bundling and not vectorized else None
    _require_signatures(where, implementation, wanted, parameters, context)
    spec = made.spec(
        FunctionKind.AGGREGATE,
        implementation.nulls,
        result=result.type,
        **fields_of(parameters),
        accumulator=accumulator.type,
        supports_retracting=implementation.supports_retracting(),
        supports_merging=implementation.supports_merging(),
        sees_key=bundling,
    )
    return Aggregate(
        spec=spec,
        call=call,
        parameters=[column.codecs for column in parameters],
        result=result,
        context_parameter=context,
        origin=made.origin,
        is_async=inspect.iscoroutinefunction(call),
        opens=made.hooks("open"),
        closes=made.hooks("close"),
        implementation=implementation,
        accumulator=accumulator,
    )


def _call(implementation: AggregateFunction, bundling: bool, vectorized: bool) -> AuthorCode:
    if vectorized:
        return implementation.apply_bundle  # type: ignore[attr-defined]
    if bundling:
        return implementation.bundled_accumulate_retract  # type: ignore[attr-defined]
    return implementation.accumulate


def _require_verbs(where: str, implementation: AggregateFunction, bundling: bool, vectorized: bool) -> list[str]:
    """What will be called, which must be there; and only a bundled call may wait."""
    kind = type(implementation)
    if vectorized:
        wanted = ["apply_bundle", "get_values"]
    elif bundling:
        wanted = ["bundled_accumulate_retract"]
    else:
        wanted = ["create_accumulator", "accumulate", "get_value"]
        wanted += ["retract"] if implementation.supports_retracting() else []
        wanted += ["merge"] if implementation.supports_merging() else []
    for verb in wanted:
        code = getattr(kind, verb, None)
        if code is None or any(code is getattr(base, verb, None) for base in _BASES):
            raise DeclarationError(f"{where}: class {kind.__name__} has no method {verb!r}")
        if inspect.iscoroutinefunction(code) and verb != "bundled_accumulate_retract":
            raise DeclarationError(f"{where}: {verb!r} is async; only bundled_accumulate_retract may be async")
    return wanted


def _require_signatures(
    where: str,
    implementation: AggregateFunction,
    verbs: list[str],
    parameters: list[SignatureColumn],
    context: str | None,
) -> None:
    """What will be called must take what it will be called with."""
    least = sum(column.required for column in parameters)
    given = {"create_accumulator": [0], "merge": [2], "accumulate": [1 + least, 1 + len(parameters)]}
    given["retract"] = given["accumulate"]
    for verb in verbs:
        for count in given.get(verb, [1]):
            signature = signature_of(getattr(implementation, verb), where)
            keywords = {context: None} if context is not None and context in signature.parameters else {}
            try:
                signature.bind(*[None] * count, **keywords)
            except TypeError as error:
                raise DeclarationError(
                    f"{where}: {verb!r} is called with {count} arguments, but its signature is "
                    f"{verb}{signature}: {error}"
                ) from error


def _context_parameter(where: str, call: AuthorCode) -> str | None:
    hints = hints_of_code(call, where)
    return next((name for name, hint in hints.items() if hint is CallContext), None)


class _Types:
    """The types of a declaration: what its attributes give, else the annotations of the methods."""

    def __init__(self, where: str, implementation: AggregateFunction, bundling: bool) -> None:
        self._where = where
        self._implementation = implementation
        self._bundling = bundling

    def parameters(self) -> list[SignatureColumn]:
        given = types_given(self._implementation.parameters, self._where)
        if not self._bundling:
            return self._of_verb(given or {})
        if given is None:
            raise DeclarationError(f"{self._where}: 'parameters' are missing, such as parameters = \"v bigint\"")
        columns = [self._given(name, type_) for name, type_ in given.items()]
        for column in columns[:-1]:
            if column.variadic:
                raise DeclarationError(f"{self._where}, parameter {column.name!r}: only the last one may be variadic")
        return columns

    def _given(self, name: str, type_: GivenType) -> SignatureColumn:
        variadic, name = name.startswith("*"), name.lstrip("*")
        return SignatureColumn(name, codecs_for(type_, f"{self._where}, parameter {name!r}"), not variadic, variadic)

    def _of_verb(self, given: dict[str, GivenType]) -> list[SignatureColumn]:
        """The parameters of `accumulate` after the accumulator."""
        code = self._implementation.accumulate
        hints = hints_of_code(code, self._where)
        columns = []
        for parameter in list(signature_of(code, self._where).parameters.values())[1:]:
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
                raise DeclarationError(
                    f"{self._where}, parameter {parameter.name!r}: arguments are passed by position only"
                )
            wanted = given.pop(parameter.name, hints.get(parameter.name))
            if wanted is None:
                raise DeclarationError(
                    f"{self._where}, parameter {parameter.name!r}: has no type: annotate it or give 'parameters'"
                )
            codecs = codecs_for(wanted, f"{self._where}, parameter {parameter.name!r}")
            columns.append(SignatureColumn.of(parameter, codecs))
        if given:
            raise DeclarationError(f"{self._where}: 'parameters' names {', '.join(given)}, which it does not have")
        return columns

    def result(self) -> Codec:
        return self._one("returns", "get_value", "result")

    def accumulator(self) -> Codec:
        return self._one("accumulator", "create_accumulator", "accumulator")

    def _one(self, attribute: str, verb: str, what: str) -> Codec:
        """The one type an attribute gives, or the method's return annotation."""
        wanted = getattr(self._implementation, attribute)
        if wanted is None and not self._bundling:
            wanted = hints_of_code(getattr(self._implementation, verb), self._where).get("return")
        if wanted is None:
            hint = "" if self._bundling else f"annotate {verb!r} or "
            raise DeclarationError(f"{self._where}, {what}: has no type: {hint}give {attribute!r}")
        codecs = codecs_for(wanted, f"{self._where}, {what}")
        if len(codecs) > 1 or pa.types.is_null(codecs[0].type):
            raise DeclarationError(f"{self._where}, {what}: {wanted} is not a single type")
        return codecs[0]
