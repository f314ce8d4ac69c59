"""Wheels for tests: packages of a few lines, and what the server itself needs, copied from what is installed here."""

import importlib.metadata
import re
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

__all__ = ["write_needed", "write_wheel"]


def write_wheel(folder: Path, name: str, version: str, code: str, requires: tuple[str, ...] = ()) -> None:
    """A wheel with one module, and the entry point of a plugin if its code has functions."""
    about = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": code,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if "udf." in code:
        files[f"{about}/entry_points.txt"] = f"[udf_server]\n{name} = {name}\n"
    _write(folder / f"{name}-{version}-py3-none-any.whl", {each: text.encode() for each, text in files.items()}, about)


def write_needed(folder: Path) -> None:
    """Wheels of all that a server needs beside its own packages."""
    left, seen = [Requirement("remote-udf[server]")], set[str]()
    while left:
        needed = left.pop()
        name = re.sub(r"[-_.]+", "-", needed.name).lower()
        distribution = importlib.metadata.distribution(name)
        for line in distribution.requires or ():
            further = Requirement(line)
            extras = [{"extra": extra} for extra in (*needed.extras, "")]
            if further.marker is None or any(further.marker.evaluate(extra) for extra in extras):
                left.append(further)
        if name not in seen and name != "remote-udf":
            _copy(distribution, folder)
        seen.add(name)


def _copy(distribution: importlib.metadata.Distribution, folder: Path) -> None:
    files = {
        str(file): Path(str(file.locate())).read_bytes()
        for file in distribution.files or ()
        if not str(file).startswith("..") and file.suffix != ".pyc" and file.name not in ("RECORD", "INSTALLER")
    }
    [about] = {file.split("/")[0] for file in files if file.split("/")[0].endswith(".dist-info")}
    tag = re.findall(r"^Tag: (.+)$", files[f"{about}/WHEEL"].decode(), re.MULTILINE)[-1]
    _write(folder / f"{about.removesuffix('.dist-info')}-{tag}.whl", files, about)


def _write(path: Path, files: dict[str, bytes], about: str) -> None:
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"]))
