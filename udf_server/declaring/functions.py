"""Function represents a plugin's function in the server: its code, types and hooks. Some are written as classes."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa

from remote_udf.effective_options import canonical
from remote_udf.errors import InvalidOption
from remote_udf.function_names import split_name
from remote_udf.functions import Execution, FunctionKind, FunctionSpec, NullCall
from remote_udf.option_tables import Option
from remote_udf.options import AGGREGATE_OPTIONS
from udf_server.base.call_scope import checked_amounts
from udf_server.base.context import BatchContext, CallContext
from udf_server.base.errors import DeclarationError, InvalidCost
from udf_server.base.failures import describe
from udf_server.declaring.annotations import AuthorCode
from udf_server.declaring.hooks import FunctionContext, Hook, checked_hook, close_all, hooks_of, open_all, takes_store
from udf_server.declaring.instances import Instances
from udf_server.values.codecs import Codec

__all__ = ["Function", "Implementation", "implementation_of", "options_of", "place_of"]


def place_of(whole: str, path: Sequence[str]) -> str:
    """What messages call a field in something, such as "key, field 'city'"."""
    return ", ".join([whole, *(f"field {name!r}" for name in path)])


@dataclass
class Function:
    """One version of one function.

    `call` is the author's code. `parameters` has, per parameter, a codec for each type that it accepts;
    `result` is the codec of the value. `context_parameter` is the name of the parameter that takes the
    CallContext, or None. `context_position` is the number of arguments before it; it is None if the parameter is
    keyword-only. `origin` says where the function was defined, for messages.
    """

    spec: FunctionSpec
    call: AuthorCode
    parameters: Sequence[Sequence[Codec]]
    result: Codec
    context_parameter: str | None
    origin: str
    is_async: bool
    context_position: int | None = None
    takes_batch_context: bool = False
    """Whether the context parameter takes a BatchContext."""
    emits: bool = False
    """Whether `call` takes an Emission before the columns. It gets None if results are sent when the call returns."""
    guarded: bool = False
    """Whether `call` waits for a guard or a budget. On a thread it needs a `current_scope`."""
    idempotent: bool = False
    """Whether its author declares that two calls for the same rows have the effect of one."""
    cache_key: AuthorCode | None = None
    """Takes the arguments and returns what distinguishes rows in the cache; None if all arguments do."""
    cost: AuthorCode | None = None
    """Takes the arguments of a call and returns an estimate of its cost, by unit; None if undeclared."""
    instances: Instances | None = None
    """The objects that `call` chooses from; None if the function has none, or if all calls share one."""
    places: Callable[[int, Sequence[str]], str] | None = None
    """What messages call a field of an argument of a function over segments; None if arguments are those of calls."""
    durable_store: bool = False
    """Whether a server must refuse to start unless the function's key-value store outlives the process."""
    opens: list[Hook] = field(default_factory=list)
    closes: list[Hook] = field(default_factory=list)

    def on_open(self, hook: Hook) -> Hook:
        """Decorator: run `hook` on the function's event loop before its first call, once per server process.

        It may have parameters of the types FunctionContext and KeyValueStore. Raises DeclarationError if it requires
        others.
        """
        self.opens.append(checked_hook(hook, "open", f"function {self.spec.key}"))
        return hook

    def on_close(self, hook: Hook) -> Hook:
        """Decorator: run `hook` when the server stops, after the last call; in reverse order of declaration.

        Raises DeclarationError if it requires arguments.
        """
        self.closes.insert(0, checked_hook(hook, "close", f"function {self.spec.key}"))
        return hook

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the author's code directly, as if it had not been decorated."""
        return self.call(*args, **kwargs)

    def call_with(self, arguments: Sequence[Any], context: CallContext | BatchContext) -> Any:
        """Call the author's code, with the context at its position if the code takes one."""
        if self.context_parameter is None:
            return self.call(*arguments)
        place = self.context_position
        if place is None or place > len(arguments):
            return self.call(*arguments, **{self.context_parameter: context})
        return self.call(*arguments[:place], context, *arguments[place:])

    def __repr__(self) -> str:
        return f"<{self.spec.kind} function {self.spec.signature} version {self.spec.version} from {self.origin}>"

    def estimated(self, arguments: Sequence[Any]) -> dict[str, float]:
        """What a call is going to cost, by unit, as `cost` says; nothing without it. Raises InvalidCost."""
        if self.cost is None:
            return {}
        place, source = self.context_position, f"function {self.spec.key}: cost"
        if self.context_parameter is not None and place is not None and place < len(arguments):
            arguments = (*arguments[:place], *arguments[place + 1 :])
        try:
            found = self.cost(*arguments)
        except Exception as error:
            raise InvalidCost(f"{source} raised {describe(error)}") from error
        return checked_amounts(found, source)

    def codec_for(self, position: int, type_: pa.DataType) -> Codec:
        """The codec of the argument at `position`, whose type is one that its parameter accepts."""
        choices = self.parameters[min(position, len(self.parameters) - 1)]
        return next(codec for codec in choices if codec.type == type_)

    def place(self, position: int, path: Sequence[str] = ()) -> str:
        """What messages call the argument at `position`, or a field in it."""
        if self.places is not None:
            return self.places(position, path)
        return place_of(f"parameter {self.spec.parameter(position).name!r}", path)

    @property
    def waits(self) -> bool:
        """Whether a call on a thread may wait until the deadline of its scope."""
        return self.guarded or self.instances is not None

    @property
    def has_hooks(self) -> bool:
        """Whether the author has declared `open` or `close`."""
        return bool(self.opens or self.closes) or (self.instances is not None and self.instances.has_hooks)

    @property
    def takes_store(self) -> bool:
        """Whether an open hook takes the key-value store of the function."""
        hooks = [*self.opens, *([] if self.instances is None else self.instances.opens)]
        return takes_store(hooks, f"function {self.spec.key}")

    async def open(self, context: FunctionContext) -> None:
        """Run the open hooks in the order of declaration, after those of `instances`."""
        await open_all(self.opens, context)

    async def close(self) -> None:
        """Run every close hook, then those of the objects. The first exception is raised after the last hook."""
        objects = [] if self.instances is None else [self.instances.close]
        await close_all([*self.closes, *objects])


class _Attributes(Protocol):
    name: ClassVar[str | None]
    version: ClassVar[str]
    description: ClassVar[str | None]
    deterministic: ClassVar[bool]
    options: ClassVar[Mapping[str, Any]]


ClassT = TypeVar("ClassT", bound=_Attributes)


@dataclass(frozen=True)
class Implementation(Generic[ClassT]):
    """The author's methods are called on `instance`; `title` is the function's name."""

    instance: ClassT
    title: str

    @property
    def where(self) -> str:
        """The beginning of error messages."""
        return f"function {self.title}"

    @property
    def origin(self) -> str:
        """Where the class was defined."""
        kind = type(self.instance)
        return f"{kind.__module__}:{kind.__qualname__}"

    def hooks(self, name: str) -> list[Hook]:
        """The method `open` or `close`, if the class has it. Raises DeclarationError."""
        return hooks_of(self.instance, name, self.where)

    def spec(self, kind: FunctionKind, nulls: str, **fields: Any) -> FunctionSpec:
        """The function's spec, from the attributes of the class and these fields. Raises DeclarationError."""
        instance = self.instance
        options = options_of(instance.options, self.where, AGGREGATE_OPTIONS)
        try:
            split_name(f"{self.title}@{instance.version}")
            return FunctionSpec(
                name=self.title,
                version=instance.version,
                kind=kind,
                description=inspect.cleandoc(instance.description or type(instance).__doc__ or ""),
                deterministic=instance.deterministic,
                nulls=NullCall(nulls),
                execution=Execution.VECTORIZED,
                options=options,
                **fields,
            )
        except ValueError as error:
            raise DeclarationError(f"{self.where}: {error}") from error


def options_of(given: Mapping[str, Any], where: str, *known: Mapping[str, Option]) -> dict[str, str]:
    """The options of a declaration as canonical text; `where` begins error messages. Raises DeclarationError."""
    try:
        return canonical(given, source=where, known=known)
    except InvalidOption as error:
        raise DeclarationError(str(error)) from error


def implementation_of(given: ClassT | type[ClassT]) -> Implementation[ClassT]:
    """The implementation of an instance, or of a class, which is instantiated. Raises DeclarationError."""
    kind: type[ClassT] = given if isinstance(given, type) else type(given)
    title = given.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
    where = f"function {title}"
    try:
        instance: ClassT = given() if isinstance(given, type) else given
    except TypeError as error:
        raise DeclarationError(
            f"{where}: class {kind.__name__} cannot be instantiated without arguments: {error}"
        ) from error
    if not isinstance(instance.version, str):
        version = instance.version
        raise DeclarationError(f"{where}: version {version!r} is not text; write {str(version)!r}")
    return Implementation(instance, title)
