"""Calls uv, which resolves and installs packages from where pip would take them."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from udf_server.base.errors import InvalidConfig

__all__ = ["CannotBuild", "Uv"]

_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_PIPS = {
    "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT", "cert": "SSL_CERT_FILE",
}  # fmt: skip
"""Options of pip, and the variables by which uv gets them: on its command line other users would see credentials."""
_MANY = {"UV_FIND_LINKS": ","}
"""What separates several values; otherwise blanks do, as in pip."""


class CannotBuild(InvalidConfig):
    """Packages could not be resolved or installed. The message has no credentials."""


class Uv:
    """uv, with the configuration of pip."""

    def __init__(self, find_links: Sequence[str] = (), *, no_index: bool = False) -> None:
        """`find_links` are folders or pages of wheels. With `no_index` only these are used.

        Raises CannotBuild if uv is not installed.
        """
        if not self.is_installed():
            raise CannotBuild(
                "groups with packages of their own are built by uv, which is not installed: pip install "
                "'remote-udf[groups]'"
            )
        # Of the extra `groups`, which only building needs.
        from uv import find_uv_bin  # noqa: PLC0415

        self._uv, self._find_links = find_uv_bin(), list(find_links)
        configured = dict(_configuration_of_pip())
        self._no_index = no_index or configured.pop("no-index", "") in ("1", "true", "True")
        self._variables = {
            _PIPS[option]: _MANY.get(_PIPS[option], " ").join(value.split())
            for option, value in configured.items()
            if option in _PIPS
        } | {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PYTHON_DOWNLOADS": "never"}  # as pip chooses

    @staticmethod
    def is_installed() -> bool:
        """Whether the server's own Python has it."""
        return importlib.util.find_spec("uv") is not None

    def python(self, version: str) -> str:
        """The interpreter of this version or range; the server's own if it is empty. Raises CannotBuild."""
        return self._run("python", "find", "--no-project", version).strip() if version else sys.executable

    def resolved(self, packages: Sequence[str], python: str, own: Path) -> list[str]:
        """A line for each package that these need: name, version and hashes. Raises CannotBuild.

        The wheel `own` is found, too, and is no line.
        """
        text = self._run(
            "pip", "compile", "-", "--generate-hashes", "--no-header", "--no-annotate", "--python", python,
            "--no-emit-package", "remote-udf", *self._places(own.parent), given="\n".join(packages),
        )  # fmt: skip
        return [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines() if line.strip()]

    def install(self, requirements: Sequence[str], python: str, own: Path, folder: Path) -> None:
        """Make an environment in a folder. Raises CannotBuild."""
        self._run("venv", "--quiet", "--relocatable", "--no-project", "--python", python, str(folder))
        inside = str(folder / "bin" / "python")
        self._run(
            "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--compile-bytecode", "--python", inside,
            *self._places(), "-r", "-", given="\n".join(requirements),
        )  # fmt: skip
        self._run("pip", "install", "--quiet", "--no-deps", "--compile-bytecode", "--python", inside, str(own))

    def _places(self, *more: Path) -> list[str]:
        links = [part for place in (*self._find_links, *map(str, more)) for part in ("--find-links", place)]
        return [*links, "--no-index"] if self._no_index else links

    def _run(self, *arguments: str, given: str = "") -> str:
        # What a user has set for uv itself goes before the configuration of pip.
        environment = {
            **self._variables, **os.environ, "UV_NO_PROGRESS": "1", "NO_COLOR": "1",
            "PATH": _with_interpreters(os.environ.get("PATH", "")),
        }  # fmt: skip
        if "compile" not in arguments:
            environment.pop(
                "UV_CONSTRAINT", None
            )  # the lock has what it allows, and installing takes pinned versions only
        done = subprocess.run(  # noqa: S603 - the command is ours
            [self._uv, *arguments], input=given, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CannotBuild(_CREDENTIALS.sub("***@", done.stderr.strip()))
        return done.stdout


def _with_interpreters(path: str) -> str:
    """The search path with the interpreters of pyenv: its shims fail for versions that are not chosen."""
    found = []
    for folder in path.split(os.pathsep):
        shims = Path(folder)
        if shims.name == "shims" and (versions := shims.with_name("versions")).is_dir():
            found += [str(each) for each in sorted(versions.glob("*/bin"), reverse=True)]
        else:
            found.append(folder)
    return os.pathsep.join(found)


def _configuration_of_pip() -> Iterator[tuple[str, str]]:
    """Options of pip, from its files and its variables: of several, the last one counts."""
    if importlib.util.find_spec("pip") is None:
        return
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603 - ours
    found = []
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        place = ("global", "install", ":env:").index(section) if section in ("global", "install", ":env:") else -1
        if place >= 0:
            found.append((place, option, str(ast.literal_eval(value))))
    for _, option, value in sorted(found):
        yield option, value
