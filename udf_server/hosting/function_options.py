"""FunctionOptions are the options in effect of one function, of its declaration and the server's configuration."""

import dataclasses
import functools
from collections.abc import Mapping

from remote_udf.effective_options import (
    AggregateOptions,
    HostedOptions,
    ScalarOptions,
    resolve_aggregate,
    resolve_hosted,
    resolve_scalar,
)
from remote_udf.errors import InvalidOption
from remote_udf.options import AGGREGATE_OPTIONS
from udf_server.base.functions import Function
from udf_server.hosting.configured import without_effect

__all__ = ["FunctionOptions"]


class FunctionOptions:
    """The options of all streams, and those of one stream, some of which its caller may override."""

    def __init__(self, function: Function, defaults: Mapping[str, str]) -> None:
        """`defaults` are those of the configuration."""
        self._function, self._spec, self._defaults = function, function.spec, defaults

    @functools.cached_property
    def hedging(self) -> HostedOptions | None:
        """When second calls are sent; None if they are not. Functions that do not allow them have none."""
        options = resolve_hosted(self._defaults, self._spec.options)
        return None if options.hedge_after is None or without_effect(self._function, "hedge-after") else options

    @functools.cached_property
    def merging(self) -> HostedOptions | None:
        """How calls of all streams are merged; None if each stream has separate calls.

        Raises InvalidOption if the configuration merges calls of a function that takes the context of a single stream.
        """
        function, options = self._function, resolve_hosted(self._defaults, self._spec.options)
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
        options = resolve_scalar(self._defaults, self._spec.options, requested)
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
        return resolve_aggregate(known, self._spec.options, requested)
