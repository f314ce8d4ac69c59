"""Interpreters of groups, and commands that run in them.

The interpreter of a group is the server's own, one that is ready, or that of an environment, built from a lock.
Commands that show or call functions run in that of the group that has them, as a server runs them.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from udf_server.base.errors import InvalidConfig
from udf_server.environments.environments import Environments, megabytes, resolve
from udf_server.environments.packages import LOCK, Locked, locked_for, read_lock, write_lock
from udf_server.environments.uv import Uv
from udf_server.serving.config import ENVIRONMENT_PREFIX, ServerConfig
from udf_server.serving.membership import config_of_group

__all__ = ["functions_of_groups", "interpreter_of", "run_in_group", "sync"]

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


def functions_of_groups(config: ServerConfig) -> list[Mapping[str, str]]:
    """What a list shows of the functions of all groups, by group. Raises InvalidConfig if a group cannot be loaded."""
    found: list[Mapping[str, str]] = []
    for name in config.groups:
        done = _run(config, name, ["functions", "--json"], capture=True)
        if done.returncode:
            # The group's own message is on standard error already.
            raise InvalidConfig(f"group {name!r}: its plugins cannot be loaded (status {done.returncode})")
        found += [{**json.loads(line), "group": name} for line in done.stdout.splitlines()]
    return found


def run_in_group(config: ServerConfig, group: str, arguments: Sequence[str]) -> int:
    """Run a command of `udf-server` with the plugins of a group and the options of functions. Returns its status."""
    return _run(config, group, arguments, capture=False).returncode


def _run(
    config: ServerConfig, name: str, arguments: Sequence[str], *, capture: bool
) -> "subprocess.CompletedProcess[str]":
    command, *values = arguments
    inside = config_of_group(config, name)
    plugins = [word for plugin in inside.plugin for word in ("--plugin", plugin)]
    found = "--entry-points" if inside.entry_points else "--no-entry-points"
    # The settings are given in full: a file or variables of the server would name its own plugins and groups.
    own = {key: value for key, value in os.environ.items() if not key.startswith(ENVIRONMENT_PREFIX)}
    output, variables = subprocess.PIPE if capture else None, config.groups[name].variables(name, own)
    with contextlib.ExitStack() as used:
        file = used.enter_context(tempfile.NamedTemporaryFile("w", suffix=".toml"))
        for function, options in config.functions.items():
            lines = [f"{json.dumps(option)} = {json.dumps(text)}\n" for option, text in options.items()]
            file.write(f"[functions.{json.dumps(function)}]\n{''.join(lines)}")
        file.flush()
        python, settings = interpreter_of(config, name, used), ["--config", file.name, found, *plugins]
        line = [python, "-m", "udf_server", command, *settings, *values]
        return subprocess.run(line, env=variables, stdout=output, text=True, check=False)  # noqa: S603 - ours


def _lock_of(config: ServerConfig) -> Path:
    return Path(config.groups_lock or LOCK)


def _environments(config: ServerConfig) -> Environments:
    if config.environments is not None:
        return Environments(Path(config.environments))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Environments(Path(cache) / "remote-udf" / "environments")
