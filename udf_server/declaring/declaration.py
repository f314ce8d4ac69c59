"""`@udf.scalar`: declares a scalar function. Everything is checked here, when the plugin is imported."""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Unpack, overload

from remote_udf.errors import InvalidOption
from remote_udf.function_names import split_name
from remote_udf.functions import Execution, FunctionKind, FunctionSpec, NullCall
from remote_udf.option_types import ScalarDefaults
from remote_udf.options import HOSTED_OPTIONS, SCALAR_OPTIONS
from udf_server.base.errors import DeclarationError
from udf_server.declaring.annotations import AuthorCode, GivenType
from udf_server.declaring.functions import Function, options_of
from udf_server.declaring.hooks import hooks_of
from udf_server.declaring.instances import Instance, Instances
from udf_server.declaring.returned_rows import collecting
from udf_server.declaring.signature import Signature, fields_of

__all__ = ["scalar"]

_HEDGE = "hedge-"


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

    Types come from annotations, see `udf_server.declaring.annotations`, unless `parameters` and `returns` give them. A
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
        code = _code_of(target if instance is None else getattr(instance, "eval", None), where, title, rows)
        _require_kinds(where, version, description, cost, cache_key)
        many = _execution_of_many(where, vectorized, batched)
        signature, is_async = Signature(where, code, many, rows), inspect.iscoroutinefunction(code)
        columns, result = signature.parameters(parameters), signature.result(returns)
        given = {**options, "cache_key": cache_key} if isinstance(cache_key, str) else options
        texts = options_of(given, where, SCALAR_OPTIONS, HOSTED_OPTIONS)
        try:
            split_name(f"{title}@{version}")
            spec = FunctionSpec(
                name=title,
                version=version,
                kind=FunctionKind.SCALAR,
                result=result.type,
                description=inspect.cleandoc(description or target.__doc__ or ""),
                deterministic=deterministic,
                nulls=NullCall(nulls),
                execution=signature.execution,
                options=texts,
                returns_rows=rows,
                **fields_of(columns),
            )
            _require_usable_options(spec, signature, is_async, idempotent)
        except (ValueError, InvalidOption) as error:
            raise DeclarationError(f"{where}: {error}") from error
        several = instance is not None and many is not None and not is_async
        instances = Instances(Instance.of(instance, where), lambda: Instance.of(target(), where)) if several else None
        shared = None if several else instance
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


def _code_of(found: object, where: str, title: str, rows: bool) -> AuthorCode:
    """What is called: the function, or the method `eval` of a class."""
    if not callable(found):
        raise DeclarationError(f"{where}: class {title} has no method 'eval'")
    return collecting(found) if rows else found


def _execution_of_many(where: str, vectorized: bool, batched: bool) -> Execution | None:
    """How a function is called for many rows; None if it is called row by row."""
    if vectorized and batched:
        raise DeclarationError(f"{where}: 'vectorized' takes arrays and 'batched' takes lists; choose one of them")
    return Execution.VECTORIZED if vectorized else Execution.BATCHED if batched else None


def _require_kinds(where: str, version: object, description: object, cost: object, cache_key: object) -> None:
    """Raise DeclarationError unless these arguments of the declaration have their types."""
    if cost is not None and not callable(cost):
        raise DeclarationError(f"{where}: cost {cost!r} is not a function of the arguments")
    if cache_key is not None and not isinstance(cache_key, str) and not callable(cache_key):
        raise DeclarationError(f"{where}: cache_key {cache_key!r} is neither text nor a function of the arguments")
    if not isinstance(version, str):
        raise DeclarationError(f"{where}: version {version!r} is not text; write {str(version)!r}")
    if description is not None and not isinstance(description, str):
        raise DeclarationError(f"{where}: description {description!r} is not text")


def _require_usable_options(spec: FunctionSpec, signature: Signature, is_async: bool, idempotent: bool) -> None:
    """Raise InvalidOption if options merge calls of all streams, or send second calls, and the function allows neither.

    `spec` has the options of the declaration.
    """
    hedging = [name for name in spec.options if name.startswith(_HEDGE)]
    merging = [name for name in HOSTED_OPTIONS if name in spec.options and name not in hedging]
    if merging and not spec.execution.by_batch:
        raise InvalidOption(
            f"option {merging[0]!r} is for functions that are called for many rows; declare vectorized=True "
            "or batched=True"
        )
    context = signature.context_parameter
    if "max-queue-delay" in merging and context is not None and not signature.takes_batch_context:
        raise InvalidOption(
            f"parameter {context!r}: with max_queue_delay a call has rows of several tasks, so there is no CallContext "
            "of the call; declare a BatchContext, which has one per row"
        )
    if "hedge-after" in hedging and not is_async:
        raise InvalidOption("option 'hedge-after' is for `async def` functions: a call on a thread cannot be cancelled")
    if hedging and not idempotent:
        raise InvalidOption(
            f"option {hedging[0]!r} sends a second call for the same rows; declare idempotent=True if that has the "
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
