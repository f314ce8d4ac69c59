"""Sources: the files of plugins that are edited in place, which are hashed when they are imported and compared later.

These are a plugin's own file and what it imports from its own folder. What is in `site-packages` is not edited.
"""

import hashlib
import re
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source, find_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

__all__ = ["Sources"]

RACY_SECONDS = 2.0
"""A file that was changed so shortly before it was hashed is read again: another edit may not show in its time."""
_IMPORTS = re.compile(
    r"^[ \t]*(?:from\s+(?P<dots>\.*)(?P<module>[\w.]*)\s+)?import\s+(?P<names>\([^)]*\)|[^\n;#]+)", re.MULTILINE
)
"""Any statement that imports, also within a function, where the module is not imported at once."""
_INSTALLED = {"site-packages", "dist-packages"}
_LIBRARY = sysconfig.get_path("stdlib")
_OURS = {"udf_server", "remote_udf", "spark_client"}
"""They are never reloaded, even if a plugin is in the folder of a checkout."""


@dataclass
class _File:
    """What was read of a file."""

    hash: bytes
    mark: tuple[int, int, int]
    """Its time, size and inode when it was last found to have that hash."""
    settled: bool
    """Whether another content would have another mark."""


class Sources(MetaPathFinder):
    """The files of plugins. Safe to use from any thread.

    Create it before the plugins are imported. If it is `watched`, it stays in `sys.meta_path` and hashes what is
    imported. Python's cache of bytecode is not used for a file that was just edited: it does not find an edit within a
    second that leaves the size of the file as it is.
    """

    def __init__(self, *, watched: bool = False) -> None:
        self._watched = watched
        self._folders: list[Path] = []
        self._packages: dict[str, list[Path]] = {}
        """The folders in which packages of plugins are, by the names of the packages."""
        self._plain: list[Path] = []
        """The folders of plugins that are a file."""
        self._files: dict[Path, _File] = {}
        self._lock = threading.Lock()
        if watched:
            sys.meta_path.insert(0, self)

    def add_file(self, path: Path) -> None:
        """Take in the file of a plugin, which may import what is in its folder, as a script may."""
        folder = str(path.parent)
        if folder not in sys.path:
            # Python's own modules keep their names; installed packages yield to the modules beside the file.
            own = [entry for entry in sys.path if entry.startswith(_LIBRARY) and not _INSTALLED & {*Path(entry).parts}]
            sys.path.insert(sys.path.index(own[-1]) + 1 if own else len(sys.path), folder)
        self._add(path)

    def add_module(self, name: str) -> None:
        """Take in the package or module of a plugin, unless it is installed in `site-packages` or a part of Python."""
        top = name.partition(".")[0]
        try:
            spec = find_spec(top)
        except (ImportError, ValueError):
            return  # importing it says why
        if spec is None or spec.origin is None or not spec.has_location or top in _OURS | sys.stdlib_module_names:
            return
        path = Path(spec.origin).resolve()
        if not _INSTALLED & {*path.parts}:
            self._add(path)

    def spec_of_file(self, name: str, path: Path) -> ModuleSpec | None:
        """How the file of a plugin is imported under a name."""
        return spec_from_file_location(name, path, loader=_Loader(name, str(path), self) if self._watched else None)

    @property
    def identity(self) -> str:
        """A hash of all files by their names; empty if there are none."""
        with self._lock:
            files = sorted((self._name(path), file.hash.hex()) for path, file in self._files.items())
        return hashlib.sha256(repr(files).encode()).hexdigest()[:32] if files else ""

    def edited(self) -> bool:
        """Whether a file no longer has the content that was imported. Reads files."""
        with self._lock:
            return any(_differs(path, file) for path, file in self._files.items())

    def forget(self) -> None:
        """Remove the modules of the files, so that they are imported again. This object is then of no more use."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        names = tuple(path.name for path in self._files)
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name == "__main__" or not isinstance(file, str) or not file.endswith(names):
                continue
            if Path(file).resolve() in self._files:
                sys.modules.pop(name, None)

    def read(self, path: Path) -> tuple[bytes, bool]:
        """The content of a file that is imported, which is hashed, and whether any edit shows in its time.

        Raises OSError.
        """
        path = path.resolve()
        mark, now = _mark(path), time.time_ns()
        content = path.read_bytes()
        file = _File(hashlib.sha256(content).digest(), mark, _is_settled(mark, now))
        with self._lock:
            # The first hash stays: if a file is imported later with another content, it counts as edited.
            return content, self._files.setdefault(path, file).settled

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How a module is imported, if it is a file of a plugin; otherwise None."""
        if not self._places(fullname.partition(".")[0]):
            return None
        others = (each for each in sys.meta_path if not isinstance(each, Sources))
        spec = next((found for each in others if (found := each.find_spec(fullname, path, target)) is not None), None)
        if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        if self._folder(Path(spec.origin).resolve()) is None:
            return None
        spec.loader = _Loader(fullname, spec.origin, self)
        return spec

    def _add(self, path: Path) -> None:
        folder = path.parent
        if folder not in self._folders:
            self._folders.append(folder)
            if path.name == "__init__.py":
                self._packages.setdefault(folder.name, []).append(folder.parent)
            else:
                self._plain.append(folder)
        if self._watched:
            self._follow(path)

    def _follow(self, path: Path) -> None:
        """Read a file and all that it imports from the folders, also within functions, before it is imported."""
        waiting = [path]
        while waiting:
            path = waiting.pop().resolve()
            if path in self._files or self._folder(path) is None:
                continue
            try:
                content, _ = self.read(path)
            except OSError:
                continue  # importing it says why
            waiting += _imported(content, path, self._places)

    def _places(self, top: str) -> list[Path]:
        """The folders in which a module or package of this name is, if it is of a plugin."""
        if top in _OURS:
            return []
        there = (each for each in self._plain if (each / f"{top}.py").is_file() or (each / top).is_dir())
        return [*self._packages.get(top, ()), *there]

    def _folder(self, path: Path) -> Path | None:
        """The folder of a plugin that has a file; None if it is in none, or in an environment in one."""
        for folder in self._folders:
            if path.is_relative_to(folder) and not _INSTALLED & {*path.relative_to(folder).parts}:
                return folder
        return None

    def _name(self, path: Path) -> str:
        folder = self._folder(path)
        return path.relative_to(folder).as_posix() if folder is not None else path.name


class _Loader(SourceFileLoader):
    """Hashes what it reads. It uses Python's cache of bytecode only where that cannot be of older code."""

    def __init__(self, name: str, path: str, sources: Sources) -> None:
        super().__init__(name, path)
        self._sources = sources

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        content, settled = self._sources.read(Path(path))
        if settled and _is_newer(cache_from_source(path), path):
            code = super().get_code(fullname)
            assert code is not None
            return code
        return self.source_to_code(content, path)


def _imported(content: bytes, path: Path, places_of: Callable[[str], Sequence[Path]]) -> Iterator[Path]:
    """The files that a file may import: relatively, or below the places that there are for a name."""
    for found in _IMPORTS.finditer(content.decode(errors="replace")):
        dots, module, names = found["dots"] or "", found["module"] or "", re.findall(r"\w[\w.]*", found["names"])
        modules = names if found["module"] is None else [module, *(f"{module}.{name}" for name in names)]
        for parts in ([part for part in name.split(".") if part] for name in modules):
            if dots:
                places: Sequence[Path] = [path.parents[min(len(dots), len(path.parents)) - 1]]
            else:
                places = places_of(parts[0]) if parts else ()
            for place in places:
                for count in range(1, len(parts) + 1):
                    base = place.joinpath(*parts[:count])
                    candidates = (base.with_name(f"{base.name}.py"), base / "__init__.py")
                    yield from (file for file in candidates if file.is_file())


def _is_newer(bytecode: str, path: str) -> bool:
    """Whether there is no bytecode yet, or it was written so long after the file that it is of what the file is now."""
    try:
        return Path(bytecode).stat().st_mtime_ns - Path(path).stat().st_mtime_ns > RACY_SECONDS * 1e9
    except OSError:
        return True


def _differs(path: Path, file: _File) -> bool:
    try:
        mark, now = _mark(path), time.time_ns()
        if mark == file.mark and file.settled:
            return False
        if hashlib.sha256(path.read_bytes()).digest() != file.hash:
            return True
    except OSError:
        return True  # importing it says why
    file.mark, file.settled = mark, _is_settled(mark, now)
    return False


def _mark(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _is_settled(mark: tuple[int, int, int], now: int) -> bool:
    return now - mark[0] > RACY_SECONDS * 1e9
