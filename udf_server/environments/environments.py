"""Environments are the folders of groups with packages of their own: one for each content, built once, not changed."""

import base64
import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from udf_server.base.errors import InvalidConfig
from udf_server.environments.packages import Asked, Locked
from udf_server.environments.uv import CannotBuild, Uv

__all__ = ["Environments", "megabytes", "resolve"]

_DISTRIBUTION, _PACKAGES = "remote-udf", ("remote_udf", "udf_server")
"""This server's own packages, of which it makes a wheel from its installation: no index has to have them."""


def resolve(asked: Asked, uv: Uv) -> Locked:
    """The lock of a group. Raises CannotBuild, which names its plugins, if they cannot be installed together."""
    with tempfile.TemporaryDirectory() as folder:
        own = _write_own_wheel(Path(folder))
        try:
            python = uv.python(asked.python)
            lines = uv.resolved([*asked.packages, f"{_DISTRIBUTION}[server]"], python, own)
        except CannotBuild as error:
            wanted = ", ".join(asked.packages) or "no package"
            raise CannotBuild(
                f"setting groups.{asked.group}, {wanted}, Python {asked.python or 'of the server'}: {error}"
            ) from None
    return Locked(list(asked.packages), asked.python, lines)


class Environments:
    """The folder of the setting `environments`. Several processes may use it, and it may be read-only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._code = _own_code()

    def folder_of(self, group: str, locked: Locked) -> Path:
        """The folder for this content. It may not be there."""
        content = json.dumps([self._code, locked.python, list(locked.requirements)])
        return self._folder / f"{group}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    def python_of(self, group: str, locked: Locked) -> Path:
        """The interpreter of a group. Raises InvalidConfig if its environment was not built."""
        folder = self.folder_of(group, locked)
        if not folder.is_dir():
            raise InvalidConfig(
                f"setting groups.{group}: its environment {folder} was not built; run `udf-server sync`, which needs "
                "uv (pip install 'remote-udf[groups]'). With build = true, a server that has uv builds it"
            )
        return folder / "bin" / "python"

    def build(self, group: str, locked: Locked, uv: Uv) -> Path:
        """Build the environment of a group unless it is there. Returns its folder. Raises CannotBuild."""
        folder = self.folder_of(group, locked)
        with self._alone():
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=self._folder, prefix=".building-") as beside:
                    made = Path(beside) / "environment"
                    try:
                        own = _write_own_wheel(Path(beside))
                        uv.install(locked.requirements, uv.python(locked.python), own, made)
                        _require_server(made)
                    except CannotBuild as error:
                        raise CannotBuild(f"setting groups.{group}: {error}") from None
                    made.rename(folder)
        return folder

    def prune(self, groups: Mapping[str, Locked]) -> list[Path]:
        """Remove the environments that these groups do not name and that no server uses. Returns their folders."""
        kept = {self.folder_of(name, locked) for name, locked in groups.items()}
        removed = []
        with self._alone():
            for folder in sorted(self._folder.iterdir()):
                if folder.name.startswith(".") or folder in kept or not (folder / "pyvenv.cfg").exists():
                    continue
                with (
                    contextlib.suppress(BlockingIOError),
                    _locked(folder / "pyvenv.cfg", fcntl.LOCK_EX | fcntl.LOCK_NB),
                ):
                    # Nobody sees a part of it.
                    gone = folder.rename(folder.with_name(f".removed-{folder.name}"))
                    shutil.rmtree(gone)
                    removed.append(folder)
        return removed

    @staticmethod
    def use(folder: Path) -> contextlib.AbstractContextManager[None]:
        """Keep `prune` from removing an environment."""
        return _locked(folder / "pyvenv.cfg", fcntl.LOCK_SH)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Let others wait that build or prune."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = self._folder / ".lock"
            lock.touch()
        except OSError as error:
            raise CannotBuild(f"setting 'environments': {self._folder} cannot be written: {error}") from error
        with _locked(lock, fcntl.LOCK_EX):
            yield


def _require_server(folder: Path) -> None:
    """Raises CannotBuild unless the server runs in an environment: not all packages say what they do not work with."""
    command = [str(folder / "bin" / "python"), "-c", "import udf_server.commands.cli"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise CannotBuild(
            f"its packages do not work together: {why[0]}; add a requirement to `plugins`, such as an older or newer "
            "version of a package that the message names"
        )


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def megabytes(folder: Path) -> float:
    """What an environment takes on disk; a file with several links counts each time."""
    return sum(file.lstat().st_size for file in folder.rglob("*")) / 1e6


def _own_files() -> Iterator[tuple[str, bytes]]:
    """Name in the wheel and content."""
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parent
        for file in sorted(folder.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield f"{package}/{file.relative_to(folder).as_posix()}", file.read_bytes()


def _own_code() -> str:
    """What identifies the code of this server."""
    digest = hashlib.sha256(importlib.metadata.version(_DISTRIBUTION).encode())
    for name, content in _own_files():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _write_own_wheel(folder: Path) -> Path:
    """Write the wheel into a folder. Returns its path."""
    distribution = importlib.metadata.distribution(_DISTRIBUTION)
    name = f"{_DISTRIBUTION.replace('-', '_')}-{distribution.version}"
    about = f"{name}.dist-info"
    files = [*_own_files(), (f"{about}/METADATA", (distribution.read_text("METADATA") or "").encode())]
    files.append(
        (f"{about}/WHEEL", b"Wheel-Version: 1.0\nGenerator: udf-server\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    )
    path = folder / f"{name}-py3-none-any.whl"
    record = ""
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in files:
            wheel.writestr(file, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{file},sha256={digest},{len(content)}\n"
        wheel.writestr(f"{about}/RECORD", f"{record}{about}/RECORD,,\n")
    return path
