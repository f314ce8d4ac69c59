"""GroupSettings are the settings in `[groups.NAME]` of the server's file: plugins with a Python of their own."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from remote_udf.errors import InvalidOption
from remote_udf.option_tables import mapping, option, read_values, table_of
from remote_udf.option_values import reader, unknown
from udf_server.base.errors import InvalidConfig
from udf_server.environments.packages import Asked, asked_by
from udf_server.serving.devices import VARIABLES, named_devices
from udf_server.serving.setting_values import bytes_, in_file, nonblank, switch, texts, whole_number

__all__ = ["ALWAYS", "DEFAULT_GROUP", "GROUP_OPTIONS", "LAST_PORT", "GroupSettings", "parse_groups"]

Table = Mapping[str, str | float | Sequence[str] | Mapping[str, str]]
"""A table as it is in the file."""
DEFAULT_GROUP = "default"
"""The group of the server's own Python, with what `plugin` and the installed packages bring."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERSIONS = re.compile(r"[0-9.<>=!~*, ]{1,40}")
_OWN = "UDF_CONFIG_"
LAST_PORT = 65_535
ALWAYS: Final = "always"
_INHERITED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_.*|TZ|TMPDIR|LD_LIBRARY_PATH|PYTHON.*|SSL_CERT_.*|XDG_.*|OTEL_.*|"
    + "|".join([f"{_OWN}.*", *VARIABLES.values()])
)
"""Variables that each group gets: those that programs need, and those that the server itself reads."""


@in_file
def _environment(table: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in table.items():
        if not _VARIABLE.fullmatch(name) or name.startswith(_OWN):
            raise InvalidOption(f"{name!r} is not the name of a variable that a group may have")
        if not isinstance(value, str):
            # The value may be a secret that was written as a number.
            raise InvalidOption(f"the value of {name!r} is not a text; write it in quotation marks")
        if value.startswith("$") and not value.startswith("$$") and not _VARIABLE.fullmatch(value[1:]):
            raise InvalidOption(f'the value of {name!r} begins with $, which a name follows; write "$$" for a $')
    return table


@reader("Required")
def _required(value: str | bool) -> bool | Literal["always"]:
    return ALWAYS if value == ALWAYS else switch(value)


@dataclass(frozen=True)
class GroupSettings:
    """The table of a group. Raises InvalidConfig for an invalid value."""

    plugins: tuple[str, ...] = option(
        texts,
        (),
        "Modules, .py files, names of installed plugins, or packages as pip takes them, such as `geo-udfs==2.1`; they "
        "are loaded in this group only. Packages, and those in the header of a file (PEP 723), are installed into an "
        "environment of the group.",
    )
    python: str | None = option(
        nonblank, None, "Version of Python for the environment of the group, such as `3.12`; or the path of an "
        "interpreter, such as `/opt/geo/bin/python`, in which remote-udf[server] is installed in the server's version. "
        "By default the server's own.",
    )  # fmt: skip
    processes: int = option(
        whole_number, 0, "Number of worker processes; each uses one core. 1, or one for each of the `devices`."
    )
    devices: tuple[str, ...] = option(
        texts, (), "Accelerators with a worker process each, as the setting `devices` of the server has them."
    )
    port: int | None = option(
        whole_number, None,
        "Port at which clients reach the group. By default the ports after the server's, in the order of the file: "
        "`port` + 1 for the first group. If the server's is 0, any free one; if it has a Unix socket, none.",
    )  # fmt: skip
    environment: Mapping[str, str] = mapping(
        _environment,
        "Variables of the processes, beside those of the server. `$NAME` is the variable NAME of the server; a value "
        "that begins with a dollar sign begins with `$$`.",
        secret=True,
    )
    inherit: tuple[str, ...] | None = option(
        texts, None, "Variables of the server that the processes get, beside those that every program needs (PATH, "
        "HOME, LANG and the like) and the server's settings. By default all.",
    )  # fmt: skip
    required: bool | Literal["always"] = option(
        _required, True, "Whether the server does not start without the group. With `always` the server is not ready, "
        "either, while the group does not answer later.",
    )  # fmt: skip
    memory: int | None = option(
        bytes_, None,
        "Resident memory of the processes of the group, such as `2 GB`; each has an equal part. One that has used 90 % "
        "of its part is replaced, and one that exceeds it is killed.",
    )  # fmt: skip
    max_server_bytes: int | None = option(
        bytes_, None, "That of the processes of this group, which then have no part of that of the server."
    )
    cache_max_bytes: int | None = option(bytes_, None, "As `max_server_bytes`.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", named_devices(self.devices, self.processes))
        object.__setattr__(self, "processes", self.processes or len(self.devices) or 1)

    def asked(self, name: str) -> Asked | None:
        """What the environment of the group with this name has to have; None if the group needs none.

        It needs one for a version of Python, for a header of a file, and for what is no name of a module. Raises
        InvalidConfig if a file cannot be read.
        """
        if self.python is not None and os.sep in self.python:
            return None
        asked = asked_by(name, self.plugins, self.python or "")
        named = [plugin for plugin in self.plugins if plugin not in asked.files]
        here = all(part.isidentifier() for plugin in named for part in plugin.split("."))
        return None if here and not asked.python and len(named) == len(asked.packages) else asked

    def variables(self, name: str, own: Mapping[str, str], needed: Sequence[str | None] = ()) -> dict[str, str]:
        """The environment of a process of the group with this name; `own` is the server's. Raises InvalidConfig.

        The process gets the variables that are `needed` whatever it inherits.
        """
        inherited = own if self.inherit is None else {*self.inherit, *needed}
        found = {key: value for key, value in own.items() if key in inherited or _INHERITED.fullmatch(key)}
        for variable, value in self.environment.items():
            if not value.startswith("$"):
                found[variable] = value
            elif value.startswith("$$"):
                found[variable] = value[1:]
            elif value[1:] in own:
                found[variable] = own[value[1:]]
            else:
                raise InvalidConfig(
                    f"setting groups.{name}: environment: {variable} is {value}, but the server has no variable "
                    f"{value[1:]}"
                )
        return found


GROUP_OPTIONS = {option.attribute: option for option in table_of(GroupSettings).values()}


def parse_groups(tables: Mapping[str, Table]) -> dict[str, GroupSettings]:
    """The groups by name. Raises InvalidConfig, which names the table and the key."""
    groups = {name: _parsed(name, table) for name, table in tables.items()}
    owners: dict[str, str] = {}
    for name, group in groups.items():
        for plugin in group.plugins:
            if owners.setdefault(plugin, name) != name:
                raise InvalidConfig(f"setting groups.{name}: plugins: {plugin!r} is in group {owners[plugin]!r} too")
    return groups


def _parsed(name: str, table: Table) -> GroupSettings:
    source = f"setting groups.{name}"
    if not _NAME.fullmatch(name) or name == DEFAULT_GROUP:
        raise InvalidConfig(
            f"{source}: not a name of a group: up to 63 lower-case letters, digits, - and _, a letter first, and not "
            f"{DEFAULT_GROUP!r}"
        )
    if not isinstance(table, dict):
        raise InvalidConfig(f"{source}: {table!r} is not a table; expected one with {', '.join(GROUP_OPTIONS)}")
    for key in table:
        if key not in GROUP_OPTIONS:
            raise InvalidConfig(f"{source}: {unknown('key', key, GROUP_OPTIONS)}")
    try:
        values = read_values(GROUP_OPTIONS, table, lambda key: f"{source}: {key.attribute}")
        named_devices(values.get("devices", ()), values.get("processes", 0), f"{source}: ")
        group = GroupSettings(**values)
        if not group.plugins:
            raise InvalidOption(f"{source}: plugins: there are none; expected a list of at least one")
        if values.get("processes", 1) < 1:
            raise InvalidOption(f"{source}: processes: {values['processes']} is less than 1")
        if group.port is not None and not 1 <= group.port <= LAST_PORT:
            raise InvalidOption(f"{source}: port: {group.port} is not a port, from 1 to {LAST_PORT}")
        python = group.python or "3"
        if shutil.which(python) is None if os.sep in python else not _VERSIONS.fullmatch(python):
            raise InvalidOption(
                f"{source}: python: {python!r} is neither the path of a program that this user can run nor a version"
            )
    except InvalidOption as error:
        raise InvalidConfig(str(error)) from None
    return group
