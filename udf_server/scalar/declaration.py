"""`@udf.scalar`: declares a scalar function. Everything is checked here, when the plugin is imported."""

import functools
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import pyarrow as pa

from remote_udf.errors import InvalidOption, UnsupportedType
from remote_udf.functions import Execution, FunctionKind, FunctionSpec, NullCall, Parameter, split_name
from remote_udf.options import HOSTED_OPTIONS, SCALAR_OPTIONS
from remote_udf.types import require_supported, spelled
from udf_server.base.annotations import array_type, codecs_for, hints_of, signature_of, type_given
from udf_server.base.codecs import Codec
from udf_server.base.context import BatchContext, CallContext
from udf_server.base.errors import DeclarationError, Failure
from udf_server.base.functions import Function
from udf_server.base.hooks import hooks_of
from udf_server.base.implementations import options_of
from udf_server.base.instances import Instance, Instances
from udf_server.base.values import ListCodec, codec_for_type
from udf_server.scalar.rows import collecting, row_of, type_of_row

__all__ = ["scalar"]


@overload
def scalar(function: Callable[..., Any], /) -> Function: ...


@overload
def scalar(
    *,
    name: str | None = None,
    version: str = "1",
    description: str | None = None,
    parameters: str | Mapping[str, Any] | None = None,
    returns: Any = None,
    vectorized: bool = False,
    batched: bool = False,
    rows: bool = False,
    deterministic: bool = True,
    idempotent: bool = False,
    nulls: str = "call",
    cache_key: str | Callable[..., Any] | None = None,
    cost: Callable[..., Any] | None = None,
    durable_store: bool = False,
    **options: Any,
) -> Callable[[Callable[..., Any]], Function]: ...


def scalar(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    description: str | None = None,
    parameters: str | Mapping[str, Any] | None = None,
    returns: Any = None,
    vectorized: bool = False,
    batched: bool = False,
    rows: bool = False,
    deterministic: bool = True,
    idempotent: bool = False,
    nulls: str = "call",
    cache_key: str | Callable[..., Any] | None = None,
    cost: Callable[..., Any] | None = None,
    durable_store: bool = False,
    **options: Any,
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Declare a scalar function, which returns one value for each row (FLIP-400).

    Decorate an `async def` (many rows run at once on the function's own event loop), a plain `def`
    (rows run on threads, so it must be thread-safe), or a class with a method `eval`,
    which may also have `open` and `close`; `open` may take a FunctionContext. With `vectorized=True` the function gets
    one Arrow array per argument, all of the same length, and returns one array of that length, row i for row i. With
    `batched=True` it gets and returns Python lists instead. Such a function must not keep state between rows, because
    any rows may be in one call. Return a Failure in place of the value of a row that failed, or raise RowErrors.

    Types come from annotations, see `udf_server.base.annotations`; those of a list function are `list[T]`, where T is
    the type of a row's argument or value. They are not used where `parameters` ("a int, b
    string", or a mapping from name to type) and `returns` give them as Spark DDL, Arrow types or
    annotations of a row. A parameter of type CallContext is not an argument: it receives the call's context.

    With `rows=True` the function returns rows: a list of dataclasses, named tuples or dictionaries, or it is a
    generator that yields them. Each becomes a row of the query; an empty list and None are no rows. The type of a row
    is T of `list[T]` or `Iterator[T]`, or `returns`, such as "name string, price double".

    With `nulls="skip"` the result for a row with a null argument is null, and the function is not called.
    With `deterministic=False` Spark may not merge or repeat calls. With `idempotent=True` a second call for the same
    rows may be sent while the first one runs (`hedge_after`, `hedge_elsewhere`). Every other keyword is the default
    of the call option of that name, see `remote_udf.options`.

    With `cache_ttl` the server keeps values for equal arguments, and calls the function once for them. `cache_key` is
    then a text that is part of the key, such as the name of a model; or a function that takes the arguments and
    returns what distinguishes rows: text, bytes, a number, None, or a tuple of them. For a vectorized function it takes
    and returns Arrow arrays. It must be fast and thread-safe.

    `cost` takes the arguments of a call and returns an estimate of what it costs, by unit, such as
    `{"tokens": len(text) / 4}`: a guard can limit such units per time. It must be fast and thread-safe.
    `CallContext.spend` replaces the estimate.

    An `open` hook with a parameter of the type KeyValueStore gets that of the function. With `durable_store=True` a
    server does not start if such a store would end with the process.

    Raises DeclarationError, naming function and parameter.
    """

    def declare(target: Callable[..., Any]) -> Function:
        title = name or _default_name(target)
        where = f"function {title}"
        instance = target() if inspect.isclass(target) else None
        code = getattr(instance, "eval", None) if instance is not None else target
        if not callable(code):
            raise DeclarationError(f"{where}: class {title} has no method 'eval'")
        code = collecting(code) if rows else code
        if cost is not None and not callable(cost):
            raise DeclarationError(f"{where}: cost {cost!r} is not a function of the arguments")
        if cache_key is not None and not isinstance(cache_key, str) and not callable(cache_key):
            raise DeclarationError(f"{where}: cache_key {cache_key!r} is neither text nor a function of the arguments")
        if not isinstance(version, str):
            raise DeclarationError(f"{where}: version {version!r} is not text; write {str(version)!r}")
        if vectorized and batched:
            raise DeclarationError(f"{where}: 'vectorized' takes arrays and 'batched' takes lists; choose one of them")
        if description is not None and not isinstance(description, str):
            raise DeclarationError(f"{where}: description {description!r} is not text")
        many = Execution.VECTORIZED if vectorized else Execution.BATCHED if batched else None
        body = _Body(where, code, many, rows)
        columns = body.parameters(parameters)
        result = body.result(returns)
        given = {**options, "cache_key": cache_key} if isinstance(cache_key, str) else options
        texts = options_of(given, where, SCALAR_OPTIONS, HOSTED_OPTIONS)
        try:
            split_name(f"{title}@{version}")
            spec = FunctionSpec(
                name=title,
                version=version,
                kind=FunctionKind.SCALAR,
                parameters=tuple(Parameter(column.name, _parameter_type(column)) for column in columns),
                result=result.type,
                required_parameters=sum(column.required for column in columns),
                variadic=any(column.variadic for column in columns),
                description=inspect.cleandoc(description or target.__doc__ or ""),
                deterministic=deterministic,
                nulls=NullCall(nulls),
                execution=body.execution,
                options=texts,
                returns_rows=rows,
            )
            _require_mergeable(spec, body.context_parameter, body.takes_batch_context)
            _require_hedgeable(spec, inspect.iscoroutinefunction(code), idempotent)
        except (ValueError, InvalidOption) as error:
            raise DeclarationError(f"{where}: {error}") from error
        is_async = inspect.iscoroutinefunction(code)
        instances = None
        if inspect.isclass(target) and many is not None and not is_async:
            instances = Instances(Instance.of(instance, where), lambda: Instance.of(target(), where))
        shared = None if instances is not None else instance
        return Function(
            spec=spec,
            call=code if instances is None else instances.caller,
            parameters=[column.codecs for column in columns],
            result=result,
            context_parameter=body.context_parameter,
            context_position=body.context_position,
            takes_batch_context=body.takes_batch_context,
            idempotent=idempotent,
            origin=_origin(code),
            is_async=is_async,
            instances=instances,
            opens=hooks_of(shared, "open", where),
            closes=hooks_of(shared, "close", where),
            cache_key=cache_key if callable(cache_key) else None,
            cost=cost,
            durable_store=durable_store,
        )

    return declare if function is None else declare(function)


def _require_mergeable(spec: FunctionSpec, context: str | None, takes_batch_context: bool) -> None:
    """Raise InvalidOption if options say that calls of all streams are merged and the function cannot be called so.

    Args:
        spec: The function, with the options of its declaration.
        context: The name of the parameter that takes the context, if there is one.
        takes_batch_context: Whether it takes a BatchContext.
    """
    wanted = [name for name in HOSTED_OPTIONS if name in spec.options and not name.startswith(_HEDGE)]
    if wanted and not spec.execution.by_batch:
        raise InvalidOption(
            f"option {wanted[0]!r} is for functions that are called for many rows; declare vectorized=True "
            "or batched=True"
        )
    if "max-queue-delay" in spec.options and context is not None and not takes_batch_context:
        raise InvalidOption(
            f"parameter {context!r}: with max_queue_delay a call has rows of several tasks, so there is no CallContext "
            "of the call; declare a BatchContext, which has one per row"
        )


_HEDGE = "hedge-"


def _require_hedgeable(spec: FunctionSpec, is_async: bool, idempotent: bool) -> None:
    """Raise InvalidOption if options say that second calls are sent and the function does not allow that."""
    wanted = [name for name in spec.options if name.startswith(_HEDGE)]
    if "hedge-after" in spec.options and not is_async:
        raise InvalidOption(
            "option 'hedge-after' is for `async def` functions: a call on a thread cannot be cancelled; "
            "'hedge-elsewhere' is for all functions"
        )
    if wanted and not idempotent:
        raise InvalidOption(
            f"option {wanted[0]!r} sends a second call for the same rows; declare idempotent=True if that has the "
            "effect of one call"
        )


@dataclass(frozen=True)
class _Column:
    """One parameter that takes arguments."""

    name: str
    codecs: list[Codec]
    required: bool
    variadic: bool


class _Body:
    """The signature of the author's code."""

    def __init__(self, where: str, code: Callable[..., Any], many: Execution | None, rows: bool) -> None:
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
        self._hints = hints_of(inspect.unwrap(code), where)
        self._signature = list(signature_of(code, where).parameters.values())
        contexts = [p.name for p in self._signature if self._hints.get(p.name) in (CallContext, BatchContext)]
        if len(contexts) > 1:
            raise DeclarationError(
                f"{where}: {contexts[0]!r} and {contexts[1]!r} are both declared as the call context"
            )
        self.context_parameter = contexts[0] if contexts else None
        self.context_position = self._context_position()
        self.takes_batch_context = bool(contexts) and self._hints[contexts[0]] is BatchContext
        if self.takes_batch_context and many is None:
            raise DeclarationError(
                f"{where}, parameter {contexts[0]!r}: a BatchContext is for vectorized and batched functions; a call "
                "for one row has a CallContext"
            )
        asynchronous = inspect.iscoroutinefunction(code)
        self.execution = many or (Execution.ASYNC_ROWS if asynchronous else Execution.THREADED_ROWS)

    def _context_position(self) -> int | None:
        for position, parameter in enumerate(self._signature):
            if parameter.name == self.context_parameter:
                return None if parameter.kind is parameter.KEYWORD_ONLY else position
        return None

    def parameters(self, given: str | Mapping[str, Any] | None) -> list[_Column]:
        explicit = self._explicit(given)
        columns = []
        for parameter in self._signature:
            if parameter.name == self.context_parameter:
                if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                    where = f"{self._where}, parameter {parameter.name!r}"
                    raise DeclarationError(f"{where}: the call context is passed by name or in its place")
                continue
            if parameter.kind is parameter.VAR_KEYWORD or parameter.kind is parameter.KEYWORD_ONLY:
                raise DeclarationError(
                    f"{self._where}, parameter {parameter.name!r}: arguments are passed by position only"
                )
            where = f"{self._where}, parameter {parameter.name!r}"
            if explicit is not None and parameter.name in explicit:
                wanted = explicit.pop(parameter.name)
            elif parameter.name in self._hints:
                wanted = self._of_row(self._hints[parameter.name], where)
            else:
                raise DeclarationError(f"{where}: has no type: annotate it or give 'parameters'")
            variadic = parameter.kind is parameter.VAR_POSITIONAL
            required = parameter.default is parameter.empty and not variadic
            columns.append(_Column(parameter.name, self._codecs(wanted, where), required, variadic))
        if explicit:
            raise DeclarationError(f"{self._where}: 'parameters' names {', '.join(explicit)}, which it does not have")
        if self.execution.by_batch and not columns and self.context_parameter is None:
            raise DeclarationError(
                f"{self._where}: a {self.execution} function without arguments needs a CallContext to know "
                "its number of rows"
            )
        return columns

    def result(self, given: Any) -> Codec:
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

    def _explicit(self, given: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
        if isinstance(given, str):
            struct = type_given(f"struct<{given}>", f"{self._where}, parameters") if given.strip() else pa.struct([])
            assert struct is not None
            return {field.name: field.type for field in struct}
        if given is not None and not isinstance(given, Mapping):
            raise DeclarationError(
                f"{self._where}: 'parameters' must be a string or a mapping from name to type, not {given!r}"
            )
        return dict(given) if given is not None else None

    def _of_row(self, wanted: Any, where: str) -> Any:
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

    def _codecs(self, wanted: Any, where: str) -> list[Codec]:
        try:
            if (type_ := type_given(wanted, where)) is not None:
                return [codec_for_type(type_)]
            if self.execution is Execution.VECTORIZED:
                return self._array_codecs(wanted, where)
            return codecs_for(wanted, where)
        except UnsupportedType as error:
            raise DeclarationError(f"{where}: {error}") from error

    def _array_codecs(self, wanted: Any, where: str) -> list[Codec]:
        """A vectorized function may be annotated with typed array classes, or Annotated ones."""
        if (type_ := array_type(wanted)) is not None:
            return [codec_for_type(require_supported(type_, where))]
        base = typing.get_args(wanted)[0] if typing.get_origin(wanted) is typing.Annotated else wanted
        notes = typing.get_args(wanted)[1:] if base is not wanted else ()
        for note in notes:
            if (type_ := type_given(note, where)) is not None:
                return [codec_for_type(type_)]
        if isinstance(base, type) and issubclass(base, (pa.Array, pa.ChunkedArray)):
            raise DeclarationError(
                f"{where}: {base.__name__} does not say the type of its values; give a DDL or Arrow type, "
                "or an array class such as pa.Int64Array"
            )
        return codecs_for(wanted, where)


def _without_failure(wanted: Any) -> Any:
    """The annotation of a result without the Failures that may be in place of values."""
    members = typing.get_args(wanted)
    if Failure not in members or typing.get_origin(wanted) not in (typing.Union, types.UnionType):
        return wanted
    return functools.reduce(operator.or_, [member for member in members if member is not Failure])


def _parameter_type(column: _Column) -> pa.DataType:
    types = [codec.type for codec in column.codecs]
    if len(types) == 1:
        return types[0]
    return pa.dense_union([pa.field(str(index), type_) for index, type_ in enumerate(types)])


def _origin(code: Callable[..., Any]) -> str:
    """`module:name`; a callable object has its class's."""
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{named.__module__}:{named.__qualname__}"


def _default_name(target: Callable[..., Any]) -> str:
    """The function's name, or the class's in snake case: `BValue` is b_value, `HTTPStatus` http_status."""
    title = getattr(target, "__name__", type(target).__name__)
    words = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(words, "_", title).lower() if inspect.isclass(target) else title
