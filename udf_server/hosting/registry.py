"""The functions of a server by name and version, the shares of jobs that a version gets (`[weights]`), and a host."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from remote_udf.errors import ErrorCode, ErrorKind, InvalidOption, StreamError
from remote_udf.function_names import split_name, version_key
from remote_udf.functions import FunctionSpec
from remote_udf.option_values import fraction, percent
from udf_server.base.errors import FunctionClash, InvalidConfig
from udf_server.declaring.functions import Function
from udf_server.declaring.hooks import CPU
from udf_server.hosting.executors import Executors, HostLimits
from udf_server.hosting.function_options import Configured, Ignored, configured, ignored_options
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.stores.opening import KeyValueStores

__all__ = ["Catalog", "FunctionHost", "HasSpec", "Registry", "check_guards", "check_weights", "parse_weights"]


class HasSpec(Protocol):
    """What has a name and a version."""

    @property
    def spec(self) -> FunctionSpec: ...


FunctionT = TypeVar("FunctionT", bound=HasSpec)


class Catalog(Generic[FunctionT]):
    """Maps name and version to function, wherever it runs. Of two functions of one key the first one is in it."""

    def __init__(self, functions: Iterable[FunctionT]) -> None:
        self._versions: dict[str, dict[str, FunctionT]] = {}
        for function in functions:
            self._versions.setdefault(function.spec.name, {}).setdefault(function.spec.version, function)

    def __iter__(self) -> Iterator[FunctionT]:
        """Iterate over the functions by name, then by version."""
        for name in sorted(self._versions):
            for version in sorted(self._versions[name], key=version_key):
                yield self._versions[name][version]

    def find(self, name: str, version: str = "", *, may_see: Callable[[str], bool] = lambda name: True) -> FunctionT:
        """The function; without a version, its highest version.

        Raises StreamError UNKNOWN_FUNCTION or UNKNOWN_VERSION. Its message names only functions that `may_see` allows.
        """
        versions = self._versions.get(name)
        if versions is None:
            known = ", ".join(filter(may_see, sorted(self._versions))) or "none"
            raise StreamError(
                ErrorKind.PROTOCOL, ErrorCode.UNKNOWN_FUNCTION, f"no function {name!r} (known: {known})"
            )  # fmt: skip
        chosen = version or max(versions, key=version_key)
        if chosen not in versions:
            known = ", ".join(sorted(versions, key=version_key))
            raise StreamError(
                ErrorKind.PROTOCOL, ErrorCode.UNKNOWN_VERSION,
                f"function {name!r} has no version {version!r} (known: {known})",
            )  # fmt: skip
        return versions[chosen]


class Registry(Catalog[Function]):
    """The functions of a process. Raises FunctionClash, with both origins, for two functions of one key."""

    def __init__(self, functions: Iterable[tuple[str, Function]]) -> None:
        found: dict[str, tuple[str, Function]] = {}
        for plugin, function in functions:
            key = function.spec.key
            if key in found:
                first, other = found[key]
                raise FunctionClash(
                    f"function {key!r} is provided by plugin {first!r} ({other.origin}) and by "
                    f"plugin {plugin!r} ({function.origin}); rename one, give it another version, or block a plugin"
                )
            found[key] = plugin, function
        super().__init__(function for _, function in found.values())
        self.plugins = {key: plugin for key, (plugin, _) in found.items()}
        """`name@version` to the plugin that provides it."""

    def configured(self, settings: Configured) -> "Registry":
        """The functions with the options that they have on a server with these settings."""
        return Registry((self.plugins[each.spec.key], configured(each, settings)) for each in self)


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


ROUNDING = 1e-9
"""Shares such as 10 %, 20 % and 70 % add up to 1 only approximately."""


def parse_weights(table: Mapping[str, str | float]) -> dict[str, float]:
    """The shares, from 0 to 1, by "name@version". Raises InvalidConfig, which names the key."""
    weights: dict[str, float] = {}
    sums: defaultdict[str, float] = defaultdict(float)
    for key, value in table.items():
        source = f'setting weights."{key}"'
        try:
            name, version = split_name(key)
        except ValueError as error:
            raise InvalidConfig(f"{source}: {error}") from None
        if not version:
            raise InvalidConfig(f'{source}: a weight is for one version of a function: write "{name}@2"')
        try:
            weights[key] = fraction(value)
        except InvalidOption as error:
            raise InvalidConfig(f"{source}: {error}") from None
        sums[name] += weights[key]
        if sums[name] > 1 + ROUNDING:
            shares = " + ".join(percent(weights[each]) for each in weights if each.partition("@")[0] == name)
            raise InvalidConfig(
                f"setting weights: the versions of {name} have {shares} of the jobs; expected at most 100 %"
            )
    return weights


def check_guards(guards: Iterable[str], catalog: Catalog[FunctionT]) -> None:
    """Raise InvalidConfig if a guard is for a function that is not in the catalog."""
    names = dict.fromkeys(function.spec.name for function in catalog)
    for name in guards:
        if name not in names:
            raise InvalidConfig(f"setting guards.{name}: there is no such function (known: {', '.join(names)})")


def check_weights(weights: Mapping[str, float], registry: Catalog[FunctionT]) -> None:
    """Raise InvalidConfig if a version is not in the catalog, or if no version has the rest of the jobs."""
    versions: defaultdict[str, list[str]] = defaultdict(list)
    for function in registry:
        versions[function.spec.name].append(function.spec.version)
    for key in weights:
        name, version = split_name(key)
        if name not in versions:
            raise InvalidConfig(
                f'setting weights."{key}": there is no such function (known: {", ".join(versions) or "none"})'
            )
        if version not in versions[name]:
            raise InvalidConfig(
                f'setting weights."{key}": function {name} has no version {version} (known: '
                f"{', '.join(versions[name])})"
            )
    for name in {split_name(key)[0] for key in weights}:
        shares = [weights.get(f"{name}@{version}") for version in versions[name]]
        given = [share for share in shares if share is not None]
        if len(given) == len(shares) and sum(given) < 1 - ROUNDING:
            raise InvalidConfig(
                f"setting weights: every version of {name} has a weight, and together they have "
                f"{percent(sum(given))} of the jobs; remove the weight of the version that gets the rest"
            )
