"""Which options of the server's configuration have no effect on a function, and why."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from remote_udf.functions import FunctionKind
from remote_udf.options import AGGREGATE_OPTIONS
from udf_server.base.functions import Function

__all__ = ["Ignored", "ignored_options", "without_effect"]


@dataclass(frozen=True)
class Ignored:
    """An option that the configuration sets for a function by its name, without effect."""

    setting: str
    """The setting, such as `functions.place.cache-ttl`."""
    function: str
    """Name and version of the function; empty if there is none of that name."""
    reason: str


def without_effect(function: Function, option: str) -> str:
    """Why an option of the configuration has no effect on the function; empty if it has one."""
    spec = function.spec
    if spec.kind is not FunctionKind.SCALAR:
        return "" if option in AGGREGATE_OPTIONS else "it is an option of scalar functions only"
    if option == "cache-ttl" and not spec.deterministic and option not in spec.options:
        return (
            "the function is declared with deterministic=False, so equal rows may have different values; only its "
            "author can declare a cache_ttl"
        )
    if option == "attempt-timeout" and not function.is_async:
        return (
            "the function is a plain `def`, whose calls cannot be cancelled; set a timeout in the client that it uses, "
            "or make it `async def`"
        )
    if option == "hedge-after" and not function.idempotent:
        return "the function is not declared with idempotent=True, so rows must not be called twice"
    if option == "hedge-after" and not function.is_async:
        return "the function is a plain `def`, and second calls are for `async def` functions"
    if option == "max-queue-delay" and not spec.execution.by_batch:
        return "the function is called for each row alone"
    return ""


def ignored_options(functions: Iterable[Function], configured: Mapping[str, Mapping[str, str]]) -> Iterator[Ignored]:
    """The options that have no effect. Those of "*" are skipped: they are for the functions that can have them."""
    by_name: dict[str, list[Function]] = {}
    for function in functions:
        by_name.setdefault(function.spec.name, []).append(function)
    for name, options in configured.items():
        if name != "*" and name not in by_name:
            yield Ignored(f"functions.{name}", "", "there is no such function")
        for function in by_name.get(name, ()):
            for option in options:
                if reason := without_effect(function, option):
                    yield Ignored(f"functions.{name}.{option}", function.spec.key, reason)
