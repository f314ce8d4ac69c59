"""Folders for Unix sockets, whose paths may only be short."""

import os
import tempfile

__all__ = ["socket_directory"]

PATH_BYTES = 103
"""The longest path of a Unix socket that every system allows; Linux allows 107 bytes."""
NAME_BYTES = 24
"""Enough for the slashes, the random part of the folder's name and the name of the socket."""
SHORT = "/tmp"  # noqa: S108 - the folder that is made in it has a random name and belongs to this user only


def socket_directory(prefix: str) -> "tempfile.TemporaryDirectory[str]":
    """A new folder that only this user can open, in TMPDIR, or in /tmp if the path of a socket in it would be too long.

    Names of sockets may have up to 12 characters.
    """
    needed = len(os.fsencode(tempfile.gettempdir())) + len(prefix) + NAME_BYTES
    parent = None if needed <= PATH_BYTES else SHORT
    return tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
