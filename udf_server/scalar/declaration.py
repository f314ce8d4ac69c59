"""`@udf.scalar`: declares a scalar function. Everything is checked here, when the plugin is imported."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Unpack, overload

from remote_udf.errors import InvalidOption
from remote_udf.functions import Execution, FunctionKind, FunctionSpec, NullCall, Parameter, split_name
from remote_udf.option_types import ScalarDefaults
from remote_udf.options import HOSTED_OPTIONS, SCALAR_OPTIONS
from udf_server.base.annotations import AuthorCode, GivenType
from udf_server.base.errors import DeclarationError
from udf_server.base.functions import Function
from udf_server.base.hooks import hooks_of
from udf_server.base.implementations import options_of
from udf_server.base.instances import Instance, Instances
from udf_server.scalar.rows import collecting
from udf_server.scalar.signature import Signature

__all__ = ["scalar"]


@overload
def scalar(function: AuthorCode, /) -> Function: ...


@overload
def scalar(
    *,
    name: str | None = None,
    version: str = "1",
    description: str | None = None,
    parameters: str | Mapping[str, GivenType] | None = None,
    returns: GivenType | None = None,
    vectorized: bool = False,
    batched: bool = False,
    rows: bool = False,
    deterministic: bool = True,
    idempotent: bool = False,
    nulls: str = "call",
    cache_key: str | AuthorCode | None = None,
    cost: AuthorCode | None = None,
    durable_store: bool = False,
    **options: Unpack[ScalarDefaults],
) -> Callable[[AuthorCode], Function]: ...


def scalar(
    function: AuthorCode | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    description: str | None = None,
    parameters: str | Mapping[str, GivenType] | None = None,
    returns: GivenType | None = None,
    vectorized: bool = False,
    batched: bool = False,
    rows: bool = False,
    deterministic: bool = True,
    idempotent: bool = False,
    nulls: str = "call",
    cache_key: str | AuthorCode | None = None,
    cost: AuthorCode | None = None,
    durable_store: bool = False,
    **options: Unpack[ScalarDefaults],
) -> Function | Callable[[AuthorCode], Function]:
    """Declare a scalar function, which returns one value for each row (FLIP-400).

    Decorate an `async def` (many rows run at once on the function's own event loop), a plain `def` (rows run on
    threads, so it must be thread-safe), or a class with a method `eval`, which may also have `open` and `close`. A
    parameter of type CallContext is not an argument: it receives the call's context. `open` may take a FunctionContext,
    and a KeyValueStore of the function.

    Types come from annotations, see `udf_server.base.annotations`, unless `parameters` and `returns` give them. A
    function that is called for many rows must not keep state between rows, because any rows may be in one call. It may
    return a Failure in place of the value of a row that failed, or raise RowErrors.

    Args:
        function: The function, if the decorator is used without parentheses.
        name: The name; by default that of the function, or that of the class in snake case.
        version: The version. All versions of a name may be served at the same time.
        description: What the function does; by default its docstring.
        parameters: The types of the arguments, as Spark DDL, "a int, b string", or as a mapping from name to type:
            Spark DDL, an Arrow type or an annotation.
        returns: The type of the value, or of a row, in the same forms.
        vectorized: The function gets one Arrow array per argument, all of the same length, and returns one array of
            that length, row i for row i.
        batched: The function gets and returns Python lists instead. Their annotations are `list[T]`, where T is the
            type of a row's argument or value.
        rows: The function returns rows: a list of dataclasses, named tuples or dictionaries, or it is a generator that
            yields them. Each becomes a row of the query; an empty list and None are no rows. The type of a row is T of
            `list[T]` or `Iterator[T]`, or `returns`, such as "name string, price double".
        deterministic: False forbids Spark to merge or repeat calls.
        idempotent: True allows a second call for the same rows while the first one runs (`hedge_after`).
        nulls: With "skip" the result for a row with a null argument is null, and the function is not called. With
            "call" the function gets the nulls.
        cache_key: A text that is part of the key under which values are kept (`cache_ttl`), such as the name of a
            model. Or a function that takes the arguments and returns what distinguishes rows: text, bytes, a number,
            None, or a tuple of them; for a vectorized function it takes and returns Arrow arrays. It must be fast and
            thread-safe.
        cost: A function that takes the arguments of a call and returns an estimate of what it costs, by unit, such as
            `{"tokens": len(text) / 4}`. Guards and budgets can limit such units. It must be fast and thread-safe.
            `CallContext.spend` replaces the estimate.
        durable_store: With True a server does not start if the KeyValueStore would end with its process.
        **options: The default of the call option of that name, see `remote_udf.options`.

    Raises:
        DeclarationError: The declaration is not valid; the message names function and parameter.
    """

    def declare(target: AuthorCode) -> Function:
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
        signature = Signature(where, code, many, rows)
        columns = signature.parameters(parameters)
        result = signature.result(returns)
        given = {**options, "cache_key": cache_key} if isinstance(cache_key, str) else options
        texts = options_of(given, where, SCALAR_OPTIONS, HOSTED_OPTIONS)
        try:
            split_name(f"{title}@{version}")
            spec = FunctionSpec(
                name=title,
                version=version,
                kind=FunctionKind.SCALAR,
                parameters=tuple(Parameter(column.name, column.type) for column in columns),
                result=result.type,
                required_parameters=sum(column.required for column in columns),
                variadic=any(column.variadic for column in columns),
                description=inspect.cleandoc(description or target.__doc__ or ""),
                deterministic=deterministic,
                nulls=NullCall(nulls),
                execution=signature.execution,
                options=texts,
                returns_rows=rows,
            )
            _require_mergeable(spec, signature.context_parameter, signature.takes_batch_context)
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
            context_parameter=signature.context_parameter,
            context_position=signature.context_position,
            takes_batch_context=signature.takes_batch_context,
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
        raise InvalidOption("option 'hedge-after' is for `async def` functions: a call on a thread cannot be cancelled")
    if wanted and not idempotent:
        raise InvalidOption(
            f"option {wanted[0]!r} sends a second call for the same rows; declare idempotent=True if that has the "
            "effect of one call"
        )


def _origin(code: AuthorCode) -> str:
    """`module:name`; a callable object has its class's."""
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{named.__module__}:{named.__qualname__}"


def _default_name(target: AuthorCode) -> str:
    """The function's name, or the class's in snake case: `BValue` is b_value, `HTTPStatus` http_status."""
    title = getattr(target, "__name__", type(target).__name__)
    words = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    return re.sub(words, "_", title).lower() if inspect.isclass(target) else title
