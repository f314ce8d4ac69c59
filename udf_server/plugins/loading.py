"""Finds and loads plugins: installed packages by entry point, modules and files by name. It knows who owns them."""

import contextlib
import dataclasses
import importlib
import importlib.metadata
import itertools
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from email.utils import getaddresses
from pathlib import Path
from types import ModuleType

import pluggy

from udf_server.aggregate.declaration import declare_aggregate, is_aggregate
from udf_server.base.errors import DeclarationError, PluginError, PluginImportError
from udf_server.declaring.functions import Function
from udf_server.plugins import hookspecs
from udf_server.plugins.hookspecs import PROJECT
from udf_server.plugins.sources import Sources
from udf_server.process.declaration import declare_process, is_process

__all__ = [
    "OWNER_LIMIT", "Plugins", "build_plugin_manager", "checked_owner", "load_functions", "owner_of_package",
    "report_of",
]  # fmt: skip

log = logging.getLogger(__name__)
_OURS = f"{Path(__file__).parents[1]}{os.sep}"


def build_plugin_manager(
    modules: Sequence[str] = (), blocked: Iterable[str] = (), *, entry_points: bool | None = None,
    sources: Sources | None = None,
) -> "Plugins":  # fmt: skip
    """A manager with the given modules; without any, with every plugin that is installed and not blocked.

    With `entry_points`, every installed plugin is loaded, too, and if it is False, none that is not named. If it is
    None, installed plugins that cannot be loaded are skipped, because nobody has asked for them.

    A module is the name of an installed plugin, a dotted name ("geo_udfs") or a file ("./geo_udfs.py"); for
    development, or for functions that are not worth a package. A file may import what is in its folder. One without the
    hook offers the functions found at its top level. Nothing is loaded at import, so tests build their own manager.

    `sources` gets the files of the plugins, to see later whether they were edited.

    Raises PluginImportError, naming the plugin, if one that is named cannot be imported, and PluginError if it
    implements a hook that does not exist or takes other arguments.
    """
    sources = sources or Sources()
    manager = Plugins()
    installed = importlib.metadata.entry_points(group=PROJECT)
    for name in blocked:
        manager.set_blocked(name)
        if name not in {*installed.names, *modules}:
            # No error: servers with different plugins may have the same settings.
            log.warning("no plugin %r to block (known: %s)", name, ", ".join(sorted({*installed.names, *modules})))
    if entry_points or (entry_points is None and not modules):
        # Not pluggy's own loader: it would pass over the second of two entry points of one name.
        for point in installed:
            if manager.is_blocked(point.name):
                continue
            if manager.has_plugin(point.name):
                raise PluginError(f"two installed packages have a plugin {point.name!r}; uninstall or block one")
            if entry_points is None:
                manager.optional.add(point.name)
            with manager.loading(point.name):
                _register(manager, _load(point, sources), point.name)
    for name in dict.fromkeys(modules):
        if manager.is_blocked(name) or manager.has_plugin(name):
            continue
        module = _load(installed[name], sources) if name in installed.names else _import(name, sources)
        # A plugin may be installed and named, too: it is the same one.
        if all(getattr(known, "__name__", None) != module.__name__ for known in manager.get_plugins()):
            _register(manager, module, name)
    while True:
        try:
            manager.check_pending()
            return manager
        except pluggy.PluginValidationError as error:
            name = str(manager.get_name(error.plugin))
            with manager.loading(name):
                raise PluginError(f"plugin {name!r}: {error}") from error


class Plugins(pluggy.PluginManager):
    """The plugins of a server. Those that are `optional` are skipped if they cannot be loaded."""

    def __init__(self) -> None:
        super().__init__(PROJECT)
        self.add_hookspecs(hookspecs)
        self.optional: set[str] = set()

    @contextlib.contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Load something of a plugin. A PluginError removes an optional plugin."""
        try:
            yield
        except PluginError as error:
            if name not in self.optional:
                raise
            if self.has_plugin(name):
                self.unregister(name=name)
            log.warning("%s; it is skipped, because no setting names it", error)

    def calls(self, hook: str) -> list[pluggy.HookImpl]:
        """The implementations of a hook, one for each plugin that has it.

        Raises PluginError for a wrapper, which would never be called.
        """
        caller: pluggy.HookCaller = getattr(self.hook, hook)
        for implementation in caller.get_hookimpls():
            with self.loading(implementation.plugin_name):
                if implementation.wrapper or implementation.hookwrapper:
                    raise PluginError(
                        f"plugin {implementation.plugin_name!r}: its {hook} is a wrapper, but hooks of each plugin are "
                        "called separately, so there is nothing to wrap; implement it without `wrapper` and "
                        "`hookwrapper`"
                    )
        return caller.get_hookimpls()


def load_functions(manager: Plugins) -> list[tuple[str, Function]]:
    """Plugin name and function, for every function of every plugin, in no meaningful order. They know their owner."""
    found: list[tuple[str, Function]] = []
    owners = _owners(manager)
    for implementation in manager.calls("udf_functions"):
        name = implementation.plugin_name
        with manager.loading(name):
            try:
                functions = list(implementation.function())  # type: ignore[call-overload]
            except Exception as error:
                raise _import_error(repr(name), error) from error
            declared = [_declared(name, function) for function in functions]
            for function in declared:
                function.spec = dataclasses.replace(function.spec, owner=owners.get(name, ""))
            found += [(name, function) for function in declared]
    return found


def _owners(manager: Plugins) -> dict[str, str]:
    """By plugin. Raises PluginError if a plugin does not say it as it should."""
    owners = {
        point.name: owner_of_package(point.dist)
        for point in importlib.metadata.entry_points(group=PROJECT)
        # Not blocked, nor another one that has its name.
        if getattr(manager.get_plugin(point.name), "__name__", "") == point.module
    }
    for implementation in manager.calls("udf_owner"):
        name = implementation.plugin_name
        with manager.loading(name):
            try:
                owner = implementation.function()
            except Exception as error:
                raise _import_error(repr(name), error) from error
            owners[name] = checked_owner(name, owner)
    return owners


def _declared(plugin: str, function: object) -> Function:
    """The function a plugin offers. Raises PluginError for something else, DeclarationError for a wrong aggregate."""
    if isinstance(function, Function):
        return function
    try:
        if is_aggregate(function):
            return declare_aggregate(function)  # type: ignore[arg-type]
        if is_process(function):
            return declare_process(function)  # type: ignore[arg-type]
    except DeclarationError as error:
        raise DeclarationError(f"plugin {plugin!r}: {error}") from error
    raise PluginError(
        f"plugin {plugin!r}: udf_functions returned {function!r}, which is neither a function declared with "
        "udf.scalar nor an AggregateFunction nor a ProcessTableFunction"
    )


def _register(manager: Plugins, module: ModuleType, name: str) -> None:
    try:
        manager.register(module, name)
        if {caller.name for caller in manager.get_hookcallers(module) or ()} - {"udf_owner"}:
            return
    except pluggy.PluginValidationError as error:
        raise PluginError(f"plugin {name!r}: {error}") from error
    _warn_of_imported(module, name)
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    functions = [value for value in vars(module).values() if isinstance(value, Function)]
    classes = [value for value in own if isinstance(value, type)]
    functions += [_declared(name, value) for value in classes if is_aggregate(value) or is_process(value)]
    if not functions:
        raise PluginError(
            f"plugin {name!r}: has neither the hook udf_functions, nor a function made with udf.scalar, nor an "
            "AggregateFunction, nor a ProcessTableFunction"
        )
    manager.unregister(module)
    manager.register(_TopLevel(module, functions), name)


def _warn_of_imported(module: ModuleType, name: str) -> None:
    """Name the aggregates and process table functions that are only imported, and so are not offered."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    bases = {base for value in classes if value.__module__ == module.__name__ for base in value.__mro__}
    for value in classes:
        ours = value.__module__ == module.__name__ or value.__module__.startswith("udf_server.")
        if not ours and value not in bases and (is_aggregate(value) or is_process(value)):
            log.warning(
                "plugin %r: class %s is imported from %s and therefore not offered; return it from the hook "
                "udf_functions to offer it", name, value.__name__, value.__module__,
            )  # fmt: skip


class _TopLevel:
    """A plugin for a module that has functions, but no hook."""

    def __init__(self, module: ModuleType, functions: list[Function]) -> None:
        self.__name__ = module.__name__
        self._functions = functions
        if hasattr(module, "udf_owner"):
            self.udf_owner = module.udf_owner

    @hookspecs.hookimpl
    def udf_functions(self) -> list[Function]:
        return self._functions


def _load(point: importlib.metadata.EntryPoint, sources: Sources) -> ModuleType:
    sources.add_module(point.module)
    try:
        module: ModuleType = point.load()
    except (Exception, SystemExit) as error:
        raise _import_error(f"{point.name!r} ({point.value})", error) from error
    return module


def _import(name: str, sources: Sources) -> ModuleType:
    try:
        if not name.endswith(".py"):
            sources.add_module(name)
            return importlib.import_module(name)
        path = Path(name).resolve(strict=True)
        sources.add_file(path)
        spec = sources.spec_of_file(_free_name(path.stem), path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up by name while the class is made.
        sys.modules[module.__name__] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module.__name__]
            raise
        return module
    except (Exception, SystemExit) as error:
        raise _import_error(repr(name), error) from error


def _free_name(stem: str) -> str:
    """An unused module name: a plugin may be called `json.py`, too."""
    taken = {*sys.modules, *sys.stdlib_module_names}
    names = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


def _import_error(plugin: str, error: BaseException) -> PluginError:
    if isinstance(error, PluginError):
        return type(error)(f"plugin {plugin}: {error}")
    return PluginImportError(f"plugin {plugin} cannot be imported: {type(error).__name__}: {error}{_place(error)}")


def report_of(error: BaseException) -> str:
    """The text of an error, and the traceback of what a plugin raised, if that is its cause."""
    cause = error.__cause__
    if not isinstance(error, PluginError) or cause is None:
        return str(error)
    frame = cause.__traceback__
    while frame is not None and _is_import(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return f"{error}\n{''.join(traceback.format_exception(type(cause), cause, frame))}".rstrip()


def _is_import(filename: str) -> bool:
    """Whether a frame only imports: ours, or of Python's import."""
    return filename.startswith(("<frozen ", _OURS)) or filename == importlib.__file__


def _place(error: BaseException) -> str:
    """The innermost line of code that is neither ours nor Python's own. Empty if there is none, or the error has it."""
    if isinstance(error, SyntaxError):
        return ""
    library = sysconfig.get_path("stdlib")
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        own = _is_import(frame.filename)
        if not own and (not frame.filename.startswith(library) or "site-packages" in frame.filename):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""


OWNER_LIMIT = 200
"""Characters of an owner."""
_CONTACTS = ("support", "contact", "chat", "issues", "bug tracker", "homepage", "documentation", "repository", "source")
"""Labels of project URLs, where to ask first."""


def owner_of_package(distribution: importlib.metadata.Distribution | None) -> str:
    """People and where to ask, as `Geo team <geo@acme.example>, https://acme.example/geo`; empty if it names none.

    Maintainers come before authors. Of the project's URLs the first of those where people can be asked.
    """
    if distribution is None:
        return ""
    fields = distribution.metadata
    for role in ("Maintainer", "Author"):
        # Names with an address are in the second field, names without one in the first.
        people = [text for name in (f"{role}-email", role) for text in fields.get_all(name) or () if text.strip()]
        if people:
            break
    pairs = [text.partition(",") for text in fields.get_all("Project-URL") or ()]
    addresses = {label.strip().lower(): address.strip() for label, _, address in pairs}
    contact = next((addresses[label] for label in _CONTACTS if label in addresses), "")
    return _line(", ".join([*map(_readable, people), *([contact] if contact else ())]))


def checked_owner(plugin: str, owner: object) -> str:
    """What the hook `udf_owner` of a plugin returned. Raises PluginError for something that is no text."""
    if not isinstance(owner, str):
        raise PluginError(f"plugin {plugin!r}: udf_owner returned {owner!r}, expected text such as a team's address")
    return _line(owner)


def _readable(people: str) -> str:
    """`Geo team <geo@acme.example>`, without the quotes that mail needs."""
    if "@" not in people:
        return people
    return ", ".join(f"{name} <{address}>" if name else address for name, address in getaddresses([people]))


def _line(owner: str) -> str:
    return " ".join(owner.split())[:OWNER_LIMIT]
