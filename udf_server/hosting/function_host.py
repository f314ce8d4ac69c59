"""FunctionHost hosts the functions of a server, from the first stream that asks for them."""

import asyncio
from collections.abc import Callable, Iterable

from udf_server.declaring.hooks import CPU
from udf_server.hosting.executors import Executors, HostLimits
from udf_server.hosting.function_options import Configured, Ignored, ignored_options
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.hosting.registry import Registry
from udf_server.stores.opening import KeyValueStores

__all__ = ["FunctionHost"]


class FunctionHost:
    """The hosted functions of a server."""

    def __init__(
        self,
        registry: Registry,
        *,
        limits: HostLimits | None = None,
        defaults: Configured | None = None,
        executors: Executors | None = None,
        device: str = CPU,
        stores: KeyValueStores | None = None,
    ) -> None:
        """`defaults` has the configuration's options by function name; "*" applies to every function.

        `device` is where models of this process run. `stores` has the key-value stores of functions, by default in
        memory.
        """
        self._declared, self._defaults = registry, defaults or {}
        self.registry = registry.configured(self._defaults)
        self._limits = limits or HostLimits()
        self._executors = executors or Executors()
        self._device = device
        self._stores = stores or KeyValueStores()
        self._hosted: dict[str, HostedFunction] = {}

    def ignored(self) -> Iterable[Ignored]:
        """The options of the configuration that have no effect."""
        return ignored_options(self._declared, self._defaults)

    def find(
        self, name: str, version: str = "", *, may_see: Callable[[str], bool] = lambda name: True
    ) -> HostedFunction:
        """Find a function and host it if it is not hosted yet.

        Raises StreamError UNKNOWN_FUNCTION or UNKNOWN_VERSION, as `Registry.find` does.
        """
        function = self.registry.find(name, version, may_see=may_see)
        key = function.spec.key
        if key not in self._hosted:
            self._hosted[key] = HostedFunction(
                function,
                self._limits,
                self._executors,
                self._stores,
                self._device,
            )
        return self._hosted[key]

    @property
    def loops(self) -> int:
        """The number of functions that have an event loop while they are used."""
        return sum(function.is_async or function.has_hooks for function in self.registry)

    def rest(self, now: float) -> bool:
        """Give back what functions hold that were not used for long. Call at intervals, with the executors' clock.

        Returns:
            Whether any did.
        """
        rested = [function.rest(now) for function in self._hosted.values()]
        return any(rested)

    def hosted(self) -> Iterable[HostedFunction]:
        """The functions that a stream has asked for so far."""
        return list(self._hosted.values())

    async def close(self) -> None:
        """Close every hosted function. Safe to call twice."""
        hosted, self._hosted = self._hosted, {}
        await asyncio.gather(*(function.close() for function in hosted.values()))
