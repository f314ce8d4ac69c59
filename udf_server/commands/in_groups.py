"""Commands that show or call functions run in the Python of the group that has them, as a server runs them."""

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from udf_server.base.errors import InvalidConfig
from udf_server.serving.config import ENVIRONMENT_PREFIX, ServerConfig
from udf_server.serving.interpreters import interpreter_of
from udf_server.serving.membership import config_of_group

__all__ = ["functions_of_groups", "run_in_group"]

Facts = Mapping[str, str]
"""What `shown_of` tells of a function."""


def functions_of_groups(config: ServerConfig) -> list[Facts]:
    """What is shown of the functions of all groups, by group. Raises InvalidConfig if a group cannot be loaded."""
    found: list[Facts] = []
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
