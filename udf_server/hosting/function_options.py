"""FunctionOptions are the options in effect of one function, of its declaration and the server's configuration.

Options of the configuration that have no effect on a function have a reason.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from remote_udf.effective_options import AggregateOptions, HostedOptions, ScalarOptions, resolve
from remote_udf.errors import InvalidOption
from remote_udf.functions import FunctionKind
from remote_udf.options import AGGREGATE_OPTIONS
from udf_server.declaring.functions import Function

__all__ = ["FunctionOptions", "Ignored", "ignored_options", "without_effect"]


class FunctionOptions:
    """The options of all streams, and those of one stream, some of which its caller may override."""

    def __init__(self, function: Function, defaults: Mapping[str, str]) -> None:
        """`defaults` are those of the configuration."""
        self._function, self._spec, self._defaults = function, function.spec, defaults

    @functools.cached_property
    def hedging(self) -> HostedOptions | None:
        """When second calls are sent; None if they are not. Functions that do not allow them have none."""
        options = resolve(HostedOptions, self._defaults, self._spec.options)
        return None if options.hedge_after is None or without_effect(self._function, "hedge-after") else options

    @functools.cached_property
    def merging(self) -> HostedOptions | None:
        """How calls of all streams are merged; None if each stream has separate calls.

        Raises InvalidOption if the configuration merges calls of a function that takes the context of a single stream.
        """
        function, options = self._function, resolve(HostedOptions, self._defaults, self._spec.options)
        if options.max_queue_delay is None or without_effect(function, "max-queue-delay"):
            return None
        if function.context_parameter is not None and not function.takes_batch_context:
            raise InvalidOption(
                f"function {self._spec.key}: option 'max-queue-delay' of the server's configuration: the function "
                "takes the CallContext of a single task, and a merged call has rows of several; remove the option, or "
                "have the function take a BatchContext"
            )
        return options

    def scalar(self, requested: Mapping[str, str]) -> ScalarOptions:
        """The options in effect. The caller's override the declaration's, which override the configuration's.

        Raises InvalidOption if the caller wants a cache for a function that is not deterministic and declares none, or
        an `attempt-timeout` for one whose calls cannot be cancelled.
        """
        options = resolve(ScalarOptions, self._defaults, self._spec.options, requested)
        if options.attempt_timeout is not None and (why := without_effect(self._function, "attempt-timeout")):
            if "attempt-timeout" in requested or "attempt-timeout" in self._spec.options:
                raise InvalidOption(f"call of {self._spec.key}: option 'attempt-timeout': {why}")
            options = dataclasses.replace(options, attempt_timeout=None)
        if options.cache_ttl and (why := without_effect(self._function, "cache-ttl")):
            if "cache-ttl" in requested:
                raise InvalidOption(f"call of {self._spec.key}: option 'cache-ttl': {why}")
            options = dataclasses.replace(options, cache_ttl=None)
        return options

    def aggregate(self, requested: Mapping[str, str]) -> AggregateOptions:
        """The options in effect of an aggregate function. Defaults that such functions do not have are ignored."""
        known = {name: text for name, text in self._defaults.items() if name in AGGREGATE_OPTIONS}
        return resolve(AggregateOptions, known, self._spec.options, requested)


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
