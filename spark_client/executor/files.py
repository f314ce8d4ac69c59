"""The file systems that tasks read and write."""

import functools
import re
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

__all__ = ["file_system", "located"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?://([^/]*))?(/.*)")
_SAME = {"s3a": "s3", "s3n": "s3"}
"""Schemes that Hadoop names differently."""
_LOCAL = fs.LocalFileSystem()


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """The system of a local path or of a URI that pyarrow.fs knows (file, s3, gs, hdfs), and the path in it.

    Raises pyarrow's ArrowInvalid for another URI.
    """
    # The scheme is not recognised by "://", because Spark itself writes "file:/tmp".
    return fs.FileSystem.from_uri(path) if _URI.match(path) else (_LOCAL, path)


def located(uri: str) -> tuple[fs.FileSystem, str]:
    """The system of a URI as Spark writes it, with escapes, and the path in it.

    Systems that pyarrow.fs does not know are those of fsspec. Credentials come from the environment of the process.
    Raises ImportError or ValueError if neither knows the scheme.
    """
    found = _PARTS.fullmatch(uri)
    if found is None:
        return _LOCAL, uri
    scheme, host, path = _SAME.get(found[1], found[1]), found[2] or "", unquote(found[3])
    if scheme == "file":
        return _LOCAL, path
    system, base = _system(scheme, host)
    return system, base.rstrip("/") + path


@functools.lru_cache(maxsize=32)
def _system(scheme: str, host: str) -> tuple[fs.FileSystem, str]:
    root = f"{scheme}://{host}/"
    try:
        system, base = fs.FileSystem.from_uri(root)
    except (pa.ArrowInvalid, NotImplementedError):
        import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415 - only these file systems need this package

        inner, base = fsspec.core.url_to_fs(root)
        system = fs.PyFileSystem(fs.FSSpecHandler(inner))
    return system, str(base)
