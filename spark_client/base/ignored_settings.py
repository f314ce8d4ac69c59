"""Settings of the Spark session that apply to no function: a warning names them, because nothing else shows them."""

import difflib
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from remote_udf.functions import FunctionKind, FunctionSpec

__all__ = ["note_functions", "warn_of_function", "warn_of_group"]

log = logging.getLogger(__name__)
NEAR = 0.7
"""How like a known name a name must be to be suggested, from 0 to 1."""

_kinds: defaultdict[str, set[FunctionKind]] = defaultdict(set)
"""The kinds of functions by name, of all remote sessions of this process: a setting may be for another server."""
_warned: set[str] = set()


def note_functions(functions: Iterable[FunctionSpec]) -> None:
    """Note that a remote session has these functions."""
    for spec in functions:
        _kinds[spec.name].add(spec.kind)


def warn_of_function(key: str, name: str, kind: FunctionKind, groups: Mapping[FunctionKind, str]) -> None:
    """Warn, once, if `key` sets an option of a function of this name and kind, and no server has one."""
    if key in _warned or kind in _kinds.get(name, ()):
        return
    plain, known = name.partition("@")[0], [each for each, kinds in _kinds.items() if kind in kinds]
    if plain in known:
        why = f"it is for all versions of a function, so write {plain!r} instead of {name!r}"
    elif name in _kinds:
        why = f"options of function {name!r} are below {' and '.join(groups[each] for each in sorted(_kinds[name]))}"
    else:
        why = f"no function of kind {kind} has the name {name!r}{_meant(plain, known)}"
    _warn(key, why)


def warn_of_group(key: str, groups: Collection[str]) -> None:
    """Warn, once, of a key that is below none of the groups of settings."""
    if key not in _warned:
        near = _meant(key.split(".")[2], (group.rpartition(".")[2] for group in groups))
        _warn(key, f"the settings are those below {', '.join(sorted(groups))}{near}")


def _warn(key: str, why: str) -> None:
    _warned.add(key)
    log.warning("session setting %s has no effect: %s", key, why)


def _meant(name: str, known: Iterable[str]) -> str:
    by_case = {each.casefold(): each for each in known}
    near = [repr(by_case[each]) for each in difflib.get_close_matches(name.casefold(), by_case, cutoff=NEAR)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
