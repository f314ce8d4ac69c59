"""The functions of a server by name and version. The registry does not change after its creation."""

from collections.abc import Callable, Iterable, Iterator

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.functions import version_key
from udf_server.base.errors import FunctionClash
from udf_server.base.functions import Function

__all__ = ["Registry"]


class Registry:
    """Maps name and version to function. Raises FunctionClash, with both origins, for two functions of one key."""

    def __init__(self, functions: Iterable[tuple[str, Function]]) -> None:
        self._versions: dict[str, dict[str, Function]] = {}
        plugins: dict[str, str] = {}
        for plugin, function in functions:
            spec = function.spec
            versions = self._versions.setdefault(spec.name, {})
            other = versions.get(spec.version)
            if other is not None:
                raise FunctionClash(
                    f"function {spec.key!r} is provided by plugin {plugins[spec.key]!r} ({other.origin}) and by "
                    f"plugin {plugin!r} ({function.origin}); rename one, give it another version, or block a plugin"
                )
            versions[spec.version] = function
            plugins[spec.key] = plugin
        self.plugins = plugins
        """`name@version` to the plugin that provides it."""

    def __iter__(self) -> Iterator[Function]:
        """Iterate over the functions by name, then by version."""
        for name in sorted(self._versions):
            for version in sorted(self._versions[name], key=version_key):
                yield self._versions[name][version]

    def find(self, name: str, version: str = "", *, may_see: Callable[[str], bool] = lambda name: True) -> Function:
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
