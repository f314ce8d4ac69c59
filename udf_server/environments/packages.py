"""The packages of groups: what each group asks for, and what the lock has for it on every server of a fleet.

The lock is beside the file of settings. The header of a plugin file, which may name packages too, is that of PEP 723,
inline script metadata.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from udf_server.base.errors import InvalidConfig

__all__ = ["LOCK", "Asked", "Locked", "asked_by", "locked_for", "read_lock", "write_lock"]

LOCK = "groups.lock"
"""Name of the file, beside the file of settings."""
_HEADER = re.compile(r"(?m)^# /// script\s*$\n((?:^#(?: .*)?$\n)+?)^# ///\s*$")


@dataclass(frozen=True)
class Asked:
    """What one group asks for."""

    group: str
    packages: tuple[str, ...]
    """Requirements, as pip takes them."""
    files: tuple[str, ...]
    """Plugin files, which are loaded from where they are."""
    python: str = ""
    """A version or a range, such as `3.12` or `>=3.12`; empty for that of the server."""


def asked_by(group: str, plugins: Sequence[str], python: str = "") -> Asked:
    """What a group asks for whose table has these values. Raises InvalidConfig if a file cannot be read."""
    files = tuple(plugin for plugin in plugins if plugin.endswith(".py"))
    packages = [plugin for plugin in plugins if plugin not in files]
    for file in files:
        dependencies, needs = _header_of(group, file)
        packages += dependencies
        python = python or needs
    return Asked(group, tuple(packages), files, python)


def _header_of(group: str, file: str) -> tuple[list[str], str]:
    """The dependencies, and the versions of Python; empty if there is no header."""
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"setting groups.{group}: plugin {file} cannot be read: {error}") from error
    found = _HEADER.findall(text)
    if len(found) > 1:
        raise InvalidConfig(f"setting groups.{group}: plugin {file} has {len(found)} headers `# /// script`; keep one")
    lines = [line[2:] for line in found[0].splitlines()] if found else []
    try:
        header = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"setting groups.{group}: the header `# /// script` of {file}: {error}") from error
    dependencies, python = header.get("dependencies", []), header.get("requires-python", "")
    if not isinstance(dependencies, list) or not all(isinstance(each, str) for each in [*dependencies, python]):
        raise InvalidConfig(
            f"setting groups.{group}: the header `# /// script` of {file}: `dependencies` is a list of texts, and "
            "`requires-python` a text"
        )
    return dependencies, python


@dataclass(frozen=True)
class Locked:
    """The packages of one group."""

    asked: Sequence[str]
    """The requirements from which it was made."""
    python: str
    """The version of Python that was asked for; empty for the server's own."""
    requirements: Sequence[str]
    """Each package with its version and hashes."""

    def fits(self, asked: Asked) -> bool:
        """Whether it was made for what a group asks for now."""
        return (list(self.asked), self.python) == (list(asked.packages), asked.python)


def read_lock(path: Path) -> dict[str, Locked]:
    """The lock by group; empty if there is none. Raises InvalidConfig if it cannot be read."""
    try:
        groups = json.loads(path.read_text())["groups"]
        return {
            name: Locked(list(map(str, each["asked"])), str(each["python"]), list(map(str, each["requirements"])))
            for name, each in groups.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidConfig(f"{path} is no lock of groups ({error!r}); make it again with `udf-server sync`") from error


def write_lock(path: Path, groups: Mapping[str, Locked]) -> None:
    """Write the lock, whole or not at all."""
    text = json.dumps({"groups": {name: asdict(groups[name]) for name in sorted(groups)}}, indent=1)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(f"{text}\n")
    beside.replace(path)


def locked_for(asked: Asked, groups: Mapping[str, Locked], path: Path) -> Locked:
    """What the lock has for a group. Raises InvalidConfig if the group is not in it, or was made for something else."""
    locked = groups.get(asked.group)
    if locked is None or not locked.fits(asked):
        was = "has no packages" if locked is None else "was made for other plugins or another version of Python"
        raise InvalidConfig(f"setting groups.{asked.group}: {path} {was}; run `udf-server sync` and deploy both files")
    return locked
