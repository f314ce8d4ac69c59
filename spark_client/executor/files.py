"""The file systems that tasks read and write."""

import contextlib
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs

from remote_udf.errors import RemoteUdfError, capped

__all__ = [
    "delete_empty", "delete_file", "file_system", "is_file", "is_of_time", "located", "located_directory",
    "make_directory", "move_file", "naming",
]  # fmt: skip

PROBLEM_LIMIT = 1_000
"""The maximum number of characters of a file system's error message."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://([^/]*)(/.*)?|(/.*))")
_SAME = {"s3a": "s3", "s3n": "s3"}
"""Schemes that Hadoop names differently."""
_LOCAL = fs.LocalFileSystem()
_OBJECT_STORES = {"s3": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs"}
"""The packages by which fsspec reads object stores."""
_PRECISION = {"local": 1, "hdfs": 1, "s3": 1_000}
"""In milliseconds, to which files have the same times as for Hadoop, by the names of pyarrow's own systems."""
_WITHOUT_DIRECTORIES = {"s3", "gcs", "abfs"}
"""The names of pyarrow's own systems in which a directory need not be made before its files."""


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """The system of a local path or of a URI that pyarrow.fs knows (file, s3, s3a, gs, hdfs), and the path in it.

    Raises pyarrow's ArrowInvalid for another URI.
    """
    # The scheme is not recognised by "://", because Spark itself writes "file:/tmp".
    if not _URI.match(path):
        return _LOCAL, path
    scheme, colon, rest = path.partition(":")
    return fs.FileSystem.from_uri(_SAME.get(scheme, scheme) + colon + rest)


def located(uri: str) -> tuple[fs.FileSystem, str]:
    """The system of a URI as Spark writes it, with escapes, and the path in it.

    Systems that pyarrow.fs does not know are those of fsspec. Credentials come from the environment of the process.
    Raises ImportError or ValueError if neither knows the scheme.
    """
    found = _PARTS.fullmatch(uri)
    if found is None:
        return _LOCAL, uri
    scheme, host, path = _SAME.get(found[1], found[1]), found[2] or "", unquote(found[3] or found[4] or "")
    if scheme == "file":
        return _LOCAL, path
    system, base = _system(scheme, host)
    return system, base.rstrip("/") + path


def located_directory(path: str) -> tuple[fs.FileSystem, str]:
    """The system of a local path or of a URI as users write it, without escapes, and the path in it.

    Raises as `located`.
    """
    return located(quote(path, safe="/:@+") if _URI.match(path) else path)


@contextlib.contextmanager
def naming(what: str, failed: type[RemoteUdfError]) -> Iterator[None]:
    """Raise errors of the block as `failed`, with `what` could not be done. Those of this project are kept.

    The packages of fsspec raise errors of many classes of their own, which are not OSErrors.
    """
    try:
        yield
    except RemoteUdfError:
        raise
    except Exception as error:
        # The errors of a package, which would be shown in full if they were the cause, may be long.
        raise failed(f"{what}: {capped(str(error) or type(error).__name__, PROBLEM_LIMIT)}") from None


def make_directory(system: fs.FileSystem, path: str) -> None:
    """Make a directory and its parents, where a file needs one."""
    if system.type_name not in _WITHOUT_DIRECTORIES:
        system.create_dir(path, recursive=True)


def is_file(system: fs.FileSystem, path: str) -> bool:
    """Whether there is a file, and not a directory."""
    return bool(system.get_file_info(path).type == fs.FileType.File)


def is_of_time(system: fs.FileSystem, path: str, milliseconds: int) -> bool:
    """Whether a file was last written at this time since 1970, which Spark tells; true where the two may differ."""
    precision = _PRECISION.get(system.type_name)
    found = None if precision is None else system.get_file_info(path).mtime_ns
    return precision is None or found is None or found // 1_000_000 // precision == milliseconds // precision


def move_file(system: fs.FileSystem, source: str, target: str) -> None:
    """Rename a file, or copy it where there is no rename, as in accounts of Azure without hierarchical namespaces."""
    try:
        system.move(source, target)
    except NotImplementedError:
        system.copy_file(source, target)
        system.delete_file(source)


def delete_file(system: fs.FileSystem, path: str) -> None:
    """Delete a file that another task, or another attempt of this one, may delete at the same time. Raises OSError."""
    if system.get_file_info(path).type is fs.FileType.NotFound:
        return
    try:
        system.delete_file(path)
    except OSError:
        if system.get_file_info(path).type is not fs.FileType.NotFound:
            raise


def delete_empty(system: fs.FileSystem, path: str) -> None:
    """Delete a local directory if it is empty. Object stores have no empty directories."""
    if isinstance(system, fs.LocalFileSystem):
        with contextlib.suppress(OSError):
            Path(path).rmdir()


@functools.lru_cache(maxsize=32)
def _system(scheme: str, host: str) -> tuple[fs.FileSystem, str]:
    root = f"{scheme}://{host}/"
    try:
        system, base = fs.FileSystem.from_uri(root)
    except (pa.ArrowInvalid, NotImplementedError) as reason:
        inner, base = _by_fsspec(scheme, root, reason)
        system = fs.PyFileSystem(fs.FSSpecHandler(inner))
    return system, str(base)


def _by_fsspec(scheme: str, root: str, reason: Exception) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # noqa: PLC0415 - only these systems need it

        return url_to_fs(root)
    except ImportError as error:
        needed = _OBJECT_STORES.get(scheme)
        remedy = "pip install 'remote-udf[object-stores]'" if needed else f"install fsspec and its package for {scheme}"
        raise ImportError(
            f"pyarrow cannot open {scheme}:// ({reason}), and fsspec cannot be used: {error}. On every worker, {remedy}"
        ) from None
