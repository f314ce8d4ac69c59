"""Interpreters of groups: the server's own, one that is ready, or that of an environment, built from a lock."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from udf_server.environments.environments import Environments, megabytes, resolve
from udf_server.environments.packages import LOCK, Locked, locked_for, read_lock, write_lock
from udf_server.environments.uv import Uv
from udf_server.serving.config import ServerConfig

__all__ = ["interpreter_of", "sync"]

log = logging.getLogger(__name__)


def interpreter_of(config: ServerConfig, name: str, used: contextlib.ExitStack) -> str:
    """The path of the Python that runs a group. Its environment is not removed before `used` is closed.

    Raises InvalidConfig if the lock has not the packages of the group, or if its environment cannot be built.
    """
    group = config.groups[name]
    asked = group.asked(name)
    if asked is None:
        return group.python or sys.executable
    lock, environments = _lock_of(config), _environments(config)
    locked = locked_for(asked, read_lock(lock), lock)
    if config.build and Uv.is_installed() and not environments.folder_of(name, locked).is_dir():
        log.info("an environment is built", extra={"group": name, "packages": len(locked.requirements)})
        environments.build(name, locked, Uv())
    python = environments.python_of(name, locked)
    used.enter_context(environments.use(python.parents[1]))
    return str(python)


def sync(config: ServerConfig, uv: Uv, *, upgrade: bool, prune: bool) -> Iterator[str]:
    """Bring lock and environments to what the groups ask for. Yields what to show.

    With `upgrade` newer packages than the lock has are taken. With `prune` environments are removed that no group has
    and no server uses. Raises CannotBuild; the lock is then as it was.
    """
    lock, environments = _lock_of(config), _environments(config)
    before = read_lock(lock)
    wanted = [asked for name, group in config.groups.items() if (asked := group.asked(name)) is not None]
    locks = dict[str, Locked]()
    for asked in wanted:
        kept = None if upgrade else before.get(asked.group)
        locks[asked.group] = kept if kept is not None and kept.fits(asked) else resolve(asked, uv)
    if locks != before:
        write_lock(lock, locks)
    for name, locked in locks.items():
        folder = environments.build(name, locked, uv)
        yield f"{name}: {len(locked.requirements)} packages, {megabytes(folder):,.0f} MB, {folder}"
    if not locks:
        yield "no group has packages of its own"
    if prune:
        for folder in environments.prune(locks):
            yield f"removed: {folder}"


def _lock_of(config: ServerConfig) -> Path:
    return Path(config.groups_lock or LOCK)


def _environments(config: ServerConfig) -> Environments:
    if config.environments is not None:
        return Environments(Path(config.environments))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Environments(Path(cache) / "remote-udf" / "environments")
