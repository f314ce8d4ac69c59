"""Checks that only this user can change a file of the server, as ssh does with the files of its keys."""

import logging
import os
import stat
from pathlib import Path

__all__ = ["NotPrivate", "check_private"]

log = logging.getLogger(__name__)


class NotPrivate(Exception):
    """The file is another user's, or a link of one. The message says what to do."""


def check_private(path: Path, user: int) -> None:
    """Check a file, which need not be there yet, and its folders.

    The log gets a warning if it, its folder or one of the folders above could be changed by others, or if it or its
    folder is a link. What belongs to another user than `user` or root, or is reached by a link of one, is refused:
    whoever made it can change values.

    Raises:
        NotPrivate: It is refused.
        OSError: A folder cannot be read.
    """
    found = []
    for each in (path, path.parent):
        if each.is_symlink():
            _refuse_strangers(each, os.lstat(each), user)
            found.append(f"{each} is a link to {os.path.realpath(each)}")
    real = Path(os.path.realpath(path))
    for each in (real, *real.parents):
        try:
            about = os.lstat(each)
        except FileNotFoundError:
            continue
        own = each in (real, real.parent)
        if own:
            _refuse_strangers(each, about, user)
        # In a folder with the sticky bit, such as /tmp, nobody can replace what is another user's.
        sticky = not own and about.st_mode & stat.S_ISVTX
        if about.st_mode & (0o022 if own else 0o002) and not sticky:
            found.append(f"others can write to {each}, whose mode is {stat.S_IMODE(about.st_mode):03o}")
    if found:
        log.warning(
            "others may change the values of a file of this server; use a folder that only its user can write to",
            extra={"file": str(path), "why": "; ".join(found)},
        )


def _refuse_strangers(path: Path, about: os.stat_result, user: int) -> None:
    if about.st_uid not in (user, 0):
        raise NotPrivate(
            f"{path} belongs to user {about.st_uid}, who could change values; this server runs as user {user}: use "
            "another folder, or give it to that user"
        )
