"""Functions that are written as classes: the single instance of the class, and the attributes of the class."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from remote_udf.effective_options import canonical
from remote_udf.errors import InvalidOption
from remote_udf.functions import Execution, FunctionKind, FunctionSpec, NullCall, split_name
from remote_udf.option_tables import Option
from remote_udf.options import AGGREGATE_OPTIONS
from udf_server.base.errors import DeclarationError
from udf_server.base.hooks import Hook, hooks_of

__all__ = ["Implementation", "implementation_of", "options_of"]


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
