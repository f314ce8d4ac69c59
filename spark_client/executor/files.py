"""The file systems that tasks write to."""

import re

from pyarrow import fs

__all__ = ["file_system"]

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_LOCAL = fs.LocalFileSystem()


def file_system(path: str) -> tuple[fs.FileSystem, str]:
    """The system of a local path or of a URI that pyarrow.fs knows (file, s3, gs, hdfs), and the path in it.

    Raises pyarrow's ArrowInvalid for another URI.
    """
    # The scheme is not recognised by "://", because Spark itself writes "file:/tmp".
    return fs.FileSystem.from_uri(path) if _URI.match(path) else (_LOCAL, path)
