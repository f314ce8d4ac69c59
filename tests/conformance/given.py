"""The functions of a user's file, and the choice of the one that a case means."""

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import udf_server as udf
from remote_udf.functions import FunctionKind, FunctionSpec
from udf_server.aggregate.declaration import declare_aggregate, is_aggregate
from udf_server.declaring.functions import Function
from udf_server.process.declaration import declare_process, is_process

__all__ = ["Candidate", "Given", "Reference", "declared"]

MODULE = "conformance_functions"
Reference = tuple[str, ...]
"""Where a function is in the file: ("at", "3") or ("binding", "ptf.json", "f", "0")."""


@dataclass(frozen=True)
class Candidate:
    """A function of the file. If its declaration raised an error, `refused` is the error and `function` is missing."""

    reference: Reference
    name: str
    python_name: str
    function: Function | None
    refused: Exception | None = None
    thing: Any = None
    """What stands in the file: a function, a class, an instance, or something that makes one."""

    @property
    def spec(self) -> FunctionSpec | None:
        return None if self.function is None else self.function.spec


def declared(thing: Any) -> Function:
    """Returns the function of any object in a plugin. Raises the errors of its declaration."""
    if isinstance(thing, Function):
        return thing
    if is_aggregate(thing):
        return declare_aggregate(thing)
    if is_process(thing):
        return declare_process(thing)
    if callable(thing) and not isinstance(thing, type) and not inspect.signature(thing).parameters:
        return declared(thing())
    raise TypeError(f"{thing!r} is no function of a plugin, nor something without arguments that makes one")


class Given:
    """A file of functions. Loading it executes it; its errors pass through."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = _loaded(path)
        self._bindings = getattr(self.module, "BINDINGS", {})
        self._check()
        self.candidates = [_candidate(("at", str(place)), thing) for place, thing in enumerate(_functions(self.module))]

    def at(self, reference: Sequence[str]) -> Candidate:
        """The function of a reference."""
        if reference[0] == "at":
            return self.candidates[int(reference[1])]
        _, case, name, place = reference
        return self._bound(case, name)[int(place)]

    def find(
        self, name: str, where: Sequence[str], arguments: Sequence[str] = (), counts: Collection[int] = (),
        kind: FunctionKind | None = None,
    ) -> Candidate | str:  # fmt: skip
        """Returns the function for a name in a case, or a text that says why there is none.

        `where` are keys of BINDINGS, the most specific one first. If several functions have the name, those of the
        kind that take one of `counts` arguments are preferred, if these are given; then those with the argument names.
        """
        key = next((key for key in where if name in (self._bindings.get(key) or {})), None)
        if key is not None:
            named = self._bound(key, name)
            if len(named) == 1:
                return named[0]
        else:
            named = self._named(name)
        if not named:
            return f"no function {name!r} in {self.path.name}"
        named = [each for each in named if each.spec is None or kind in (None, each.spec.kind)]
        if not named:
            return f"{self.path.name} has no function {name!r} of kind {kind}"
        fitting = [each for each in named if each.spec is None or _takes(each.spec, counts)]
        if not fitting:
            found = ", ".join(each.spec.signature for each in named if each.spec is not None)
            wanted = " or ".join(str(count) for count in sorted(counts))
            return f"{self.path.name} has {found}, which does not take {wanted} arguments"
        exact = [each for each in fitting if each.spec is not None and _names(each.spec) == list(arguments)] or fitting
        if len(exact) > 1:
            return f"{self.path.name} has {len(exact)} functions {name!r}; say in BINDINGS which one is meant"
        return exact[0]

    def called(self, names: Sequence[str], where: Sequence[str]) -> list[tuple[str, Candidate]]:
        """Returns the functions for those names that the file has."""
        found = []
        for name in names:
            candidate = self.find(name, where)
            if isinstance(candidate, Candidate):
                found.append((name, candidate))
        return found

    def _named(self, name: str) -> list[Candidate]:
        """Finds by the exact name, else by its letters and digits, since names of cases need not be names of Python."""
        exact = [each for each in self.candidates if name in (each.name, each.python_name)]
        plain = _letters(name)
        return exact or [each for each in self.candidates if plain in (_letters(each.name), _letters(each.python_name))]

    def _bound(self, case: str, name: str) -> list[Candidate]:
        """Returns the functions that BINDINGS has for a name: one, or several for different arguments."""
        given = self._bindings[case][name]
        several = given if isinstance(given, list | tuple) else [given]
        return [self._meant(case, name, place, thing) for place, thing in enumerate(several)]

    def _meant(self, case: str, name: str, place: int, thing: Any) -> Candidate:
        if isinstance(thing, str):
            by_name = [each for each in self.candidates if thing in (each.name, each.python_name)]
            if len(by_name) != 1:
                raise ValueError(f"BINDINGS[{case!r}][{name!r}]: {len(by_name)} functions are called {thing!r}")
            return by_name[0]
        return _candidate(("binding", case, name, str(place)), thing)

    def _check(self) -> None:
        if not isinstance(self._bindings, Mapping) or not all(
            isinstance(key, str) and isinstance(value, Mapping) for key, value in self._bindings.items()
        ):
            raise ValueError(f"{self.path.name}: BINDINGS must be {{case id or file: {{name: function}}}}")


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Creating a dataclass looks its module up by name.
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module


def _functions(module: ModuleType) -> list[Any]:
    hook: Callable[[], Any] | None = getattr(module, "udf_functions", None)
    if hook is not None:
        return list(hook())
    base = (udf.AggregateFunction, udf.BundledAggregateFunction, udf.ProcessTableFunction)
    found = []
    for value in vars(module).values():
        own = isinstance(value, type) and value.__module__ == module.__name__
        if isinstance(value, (Function, *base)) or (own and issubclass(value, base)):
            found.append(value)
    return found


def _candidate(reference: Reference, thing: Any) -> Candidate:
    plain = thing if isinstance(thing, type) else type(thing)
    python_name = (
        getattr(getattr(thing, "call", None), "__name__", "") if isinstance(thing, Function) else plain.__name__
    )
    name = str(getattr(thing, "name", "") or python_name)
    try:
        function = declared(thing)
    except Exception as error:
        return Candidate(reference, name, python_name, None, error, thing)
    return Candidate(reference, function.spec.name, python_name, function, None, thing)


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _names(spec: FunctionSpec) -> list[str]:
    return [parameter.name for parameter in spec.parameters]


def _takes(spec: FunctionSpec, counts: Collection[int]) -> bool:
    return not counts or any(
        spec.required_parameters <= count and (count <= len(spec.parameters) or spec.variadic) for count in counts
    )
