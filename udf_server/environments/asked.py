"""What a group asks for: packages, plugin files, the packages that the headers of these name, and a version of Python.

The header of a file is that of PEP 723, inline script metadata.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from udf_server.base.errors import InvalidConfig

__all__ = ["Asked", "asked_by"]

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
