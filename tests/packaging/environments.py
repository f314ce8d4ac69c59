"""Empty environments with one wheel and its requirements only, created without a network."""

import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from email import message_from_bytes
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


class Environment:
    """A virtual environment: the wheel is installed into it, its requirements are linked from this environment."""

    def __init__(self, folder: Path, wheel: Path, extras: Iterable[str]) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        self.site = next(folder.glob("lib/python*/site-packages"))
        self.names = sorted(required(requirements(wheel), extras))
        for name in self.names:
            _link(importlib.metadata.distribution(name), self.site)
        self.install(wheel)

    def install(self, wheel: Path) -> None:
        """Installs a wheel without its requirements."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True, timeout=100)

    def run(
        self, *command: str, cwd: Path, fails: bool = False, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command of the environment outside the source tree; if it fails, the test fails."""
        program = str(self.python.parent / command[0])
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "UDF_"))}
        environment |= {"PYSPARK_PYTHON": str(self.python), **(variables or {})}
        done = subprocess.run(
            [program, *command[1:]], cwd=cwd, env=environment, capture_output=True, text=True, timeout=110, check=False
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done

    def code(self, text: str, cwd: Path) -> str:
        """Runs Python code, and returns its output."""
        return self.run("python", "-W", "error", "-c", text, cwd=cwd).stdout


def build(folder: Path, *projects: Path) -> list[Path]:
    """Builds the wheels of projects with pip."""
    options = ["-q", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, *map(str, projects)], check=True, timeout=110)
    return sorted(folder.glob("*.whl"))


def requirements(wheel: Path) -> list[Requirement]:
    """Returns the requirements of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        message = message_from_bytes(archive.read(metadata))
    return [Requirement(text) for text in message.get_all("Requires-Dist", [])]


def required(given: Iterable[Requirement], extras: Iterable[str]) -> set[str]:
    """Returns the names of all packages that these requirements need, directly or indirectly."""
    found: dict[str, set[str]] = {}
    waiting = list(_applicable(given, extras))
    while waiting:
        requirement = waiting.pop()
        name, wanted = canonicalize_name(requirement.name), {"", *requirement.extras}
        new = wanted - found.get(name, set())
        if new:
            found.setdefault(name, set()).update(new)
            own = map(Requirement, importlib.metadata.distribution(name).requires or ())
            waiting += _applicable(own, new)
    return set(found)


def _applicable(given: Iterable[Requirement], extras: Iterable[str]) -> Iterator[Requirement]:
    for requirement in given:
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield requirement


def _link(distribution: importlib.metadata.Distribution, site: Path) -> None:
    for file in distribution.files or ():
        if ".." in file.parts or file.suffix == ".pyc":
            continue
        path = site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(Path(str(distribution.locate_file(file))))
