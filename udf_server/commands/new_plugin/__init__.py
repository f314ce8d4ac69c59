"""`udf-server new-plugin`: writes the package of a new plugin, which passes its own checks."""

import importlib.resources
import importlib.util
import keyword
import re
import string
import sys
from importlib.resources.abc import Traversable
from pathlib import Path

from remote_udf.version import __version__

__all__ = ["new_plugin"]

SUFFIX = ".template"
"""The suffix of files in `template/`, which tools must not treat as Python. `$name` and the like are replaced."""

LONGEST = 40
"""Characters of a name: lines that hold it stay as short as its own linter wants them."""


def new_plugin(name: str, directory: Path) -> list[Path]:
    """Writes the package `name` into a new folder of that name below `directory`; returns its files, in order.

    Raises ValueError for a name that no package or module could have, or that is taken here, and
    FileExistsError if the folder is there; then nothing is written.
    """
    module = _module(name)
    root = directory / name
    words = {
        "name": name,
        "module": module,
        "plugin": module.removesuffix("_udfs").removesuffix("_udf") or module,
        "requirement": f"remote-udf[server]>={__version__}",
    }
    # Created first: if two commands run at once, one of them fails because the folder exists.
    root.mkdir(parents=True)
    written = []
    for place, template in _files(importlib.resources.files(__name__) / "template"):
        path = root / place.replace("package", module, 1).replace("test_functions", f"test_{module}")
        path.parent.mkdir(exist_ok=True)
        path.write_text(string.Template(template.read_text("utf-8")).substitute(words), encoding="utf-8")
        written.append(path)
    return written


def _module(name: str) -> str:
    """The module of a package. Raises ValueError, saying what is wrong with the name."""
    if not re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        raise ValueError(
            f"{name!r} is not a valid plugin name: write lower case letters, digits and hyphens, such as acme-prices"
        )
    if len(name) > LONGEST:
        raise ValueError(f"{name!r} is not a valid plugin name: it is longer than {LONGEST} characters")
    module = name.replace("-", "_")
    if keyword.iskeyword(module):
        raise ValueError(f"{name!r} is not a valid plugin name: {module} is a keyword of Python")
    if module == "tests":
        raise ValueError(f"{name!r} is not a valid plugin name: the package has a folder of that name")
    if module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None:
        raise ValueError(f"{name!r} is not a valid plugin name: a module {module} exists already")
    return module


def _files(folder: Traversable, below: str = "") -> list[tuple[str, Traversable]]:
    """Every template below a folder, and the place of what is made of it."""
    found: list[tuple[str, Traversable]] = []
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            found += _files(entry, f"{below}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            found.append((below + entry.name.removesuffix(SUFFIX), entry))
    return found
