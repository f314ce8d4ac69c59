"""FunctionOptions are the options in effect of one function."""

import functools
from collections.abc import Mapping

from remote_udf.effective_options import AggregateOptions, HostedOptions, ScalarOptions, resolve
from remote_udf.errors import InvalidOption
from udf_server.declaring.functions import Function
from udf_server.hosting.configured_options import without_effect

__all__ = ["FunctionOptions"]


class FunctionOptions:
    """The options of all streams, and those of one stream, some of which its caller may override."""

    def __init__(self, function: Function) -> None:
        """The function has the options of its declaration and of the configuration, as `configured` merges them."""
        self._function, self._spec = function, function.spec

    @functools.cached_property
    def hedging(self) -> HostedOptions | None:
        """When second calls are sent; None if they are not. Functions that do not allow them have none."""
        options = resolve(HostedOptions, self._spec.options)
        return None if options.hedge_after is None else options

    @functools.cached_property
    def merging(self) -> HostedOptions | None:
        """How calls of all streams are merged; None if each stream has separate calls.

        Raises InvalidOption if the configuration merges calls of a function that takes the context of a single stream.
        """
        function, options = self._function, resolve(HostedOptions, self._spec.options)
        if options.max_queue_delay is None:
            return None
        if function.context_parameter is not None and not function.takes_batch_context:
            raise InvalidOption(
                f"function {self._spec.key}: option 'max-queue-delay' of the server's configuration: the function "
                "takes the CallContext of a single task, and a merged call has rows of several; remove the option, or "
                "have the function take a BatchContext"
            )
        return options

    def scalar(self, requested: Mapping[str, str]) -> ScalarOptions:
        """The options in effect. The caller's override the others.

        Raises InvalidOption if the caller wants a cache for a function that is not deterministic and declares none, an
        `attempt-timeout` for one whose calls cannot be cancelled, or `retry-empty` for one whose calls have many rows.
        """
        options = resolve(ScalarOptions, self._spec.options, requested)
        for name in ("attempt-timeout", "cache-ttl", "retry-empty"):
            if getattr(options, name.replace("-", "_")) and (why := without_effect(self._function, name)):
                raise InvalidOption(f"call of {self._spec.key}: option {name!r}: {why}")
        return options

    def aggregate(self, requested: Mapping[str, str]) -> AggregateOptions:
        """The options in effect of an aggregate or process table function."""
        return resolve(AggregateOptions, self._spec.options, requested)
