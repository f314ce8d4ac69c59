"""Hooks: an author's `open` and `close`, and the context that `open` can get."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from udf_server.base.context import function_logger
from udf_server.base.errors import DeclarationError
from udf_server.base.key_value_store import KeyValueStore
from udf_server.declaring.annotations import hints_of_code, signature_of

__all__ = ["CPU", "FunctionContext", "Hook", "checked_hook", "close_all", "hooks_of", "open_all", "takes_store"]

CPU = "cpu"
"""The device of a process that was given none."""

Hook = Callable[..., Awaitable[None] | None]
"""An `open` or `close` hook, sync or async. `open` may take a FunctionContext and a KeyValueStore, and nothing else."""


@dataclass(frozen=True, slots=True)
class FunctionContext:
    """What `open` can know about its function. Declare a parameter of this type to get it.

    `device` is where a model runs, as libraries name it: "cpu", or the device of this worker process, such as
    "cuda:0" (the setting `devices` of the server). A process sees no device but its own, which is number 0 there.
    `instance` counts the objects of the class in this process, from 0; there are `instances` of them.
    """

    function: str
    version: str
    device: str = CPU
    instance: int = 0
    instances: int = 1
    store: KeyValueStore | None = field(default=None, repr=False, compare=False)
    """The store of the function; None unless a hook takes a KeyValueStore."""

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that adds function, device and instance to its messages."""
        return function_logger(self.function, self.version, device=self.device, instance=self.instance)


def hooks_of(instance: Any, name: str, where: str) -> list[Hook]:
    """The method `open` or `close` of an object, if it has one. Raises DeclarationError; `where` begins its message."""
    return [checked_hook(getattr(instance, name), name, where)] if hasattr(instance, name) else []


def checked_hook(hook: Hook, name: str, where: str) -> Hook:
    """The hook. Raises DeclarationError if it requires arguments that it does not get; `where` begins its message."""
    given = _given(hook, where) if name == "open" else {}
    for parameter in signature_of(hook, where).parameters.values():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.name not in given and parameter.default is parameter.empty and not variadic:
            gets = "only a parameter that is annotated as FunctionContext" if name == "open" else "no arguments"
            gets += " or KeyValueStore" if name == "open" else ""
            raise DeclarationError(f"{where}: '{name}' has a parameter {parameter.name!r}, but it gets {gets}")
    return hook


async def open_all(hooks: Iterable[Hook], context: FunctionContext) -> None:
    """Run open hooks in this order."""
    for hook in hooks:
        given = _given(hook, f"function {context.function}")
        values = {name: context if kind is FunctionContext else context.store for name, kind in given.items()}
        await _awaited(hook(**values))


async def close_all(hooks: Iterable[Hook]) -> None:
    """Run every close hook. The first exception is raised after the last hook."""
    failures: list[BaseException] = []
    for hook in hooks:
        try:
            await _awaited(hook())
        except BaseException as error:
            failures.append(error)
    if failures:
        raise failures[0]


def takes_store(hooks: Iterable[Hook], where: str) -> bool:
    """Whether an open hook has a parameter of type KeyValueStore."""
    return any(KeyValueStore in _given(hook, where).values() for hook in hooks)


def _given(hook: Hook, where: str) -> dict[str, type]:
    """The parameters that get what the host has, by name."""
    hints = hints_of_code(hook, where)
    return {name: hint for name, hint in hints.items() if hint in (FunctionContext, KeyValueStore) and name != "return"}


async def _awaited(result: Awaitable[None] | None) -> None:
    if inspect.isawaitable(result):
        await result
