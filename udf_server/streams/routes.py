"""Routes are the functions of other groups of a server, and the Unix sockets of the processes that have them.

The parent process writes them to a file, which the processes of the default group watch.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from google.protobuf.message import DecodeError

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.functions import FunctionSpec
from remote_udf.v1 import function_pb2
from udf_server.base.errors import FunctionClash, InvalidConfig

__all__ = [
    "GroupFunction",
    "Route",
    "functions_of",
    "listed_specs",
    "name_of_route",
    "packed_specs",
    "read_routes",
    "require_route",
    "write_routes",
]


@dataclass(frozen=True)
class GroupFunction:
    """A function that a process of another group has."""

    spec: FunctionSpec
    group: str


class Route(TypedDict):
    """What is known of a group."""

    sockets: Sequence[str]
    port: NotRequired[int]
    """Where clients reach it; 0 or absent if they do not."""
    functions: Sequence[str]
    """As `packed_specs` writes them."""


def packed_specs(specs: Iterable[FunctionSpec]) -> list[str]:
    """Specs as texts, for JSON."""
    return [base64.b64encode(spec.to_proto().SerializeToString()).decode() for spec in specs]


def listed_specs(packed: Iterable[str]) -> list[FunctionSpec]:
    """The specs that `packed_specs` wrote. Raises InvalidConfig if it did not write them."""
    try:
        messages = [function_pb2.FunctionSpec.FromString(base64.b64decode(text)) for text in packed]
    except (ValueError, DecodeError) as error:
        raise InvalidConfig(f"a worker process does not say which functions it has: {error}") from error
    return [FunctionSpec.from_proto(message) for message in messages]


def functions_of(routes: Mapping[str, Route]) -> list[GroupFunction]:
    """The functions of all groups. Raises FunctionClash if two groups have one of the same name and version."""
    functions: dict[str, GroupFunction] = {}
    for group, route in routes.items():
        for spec in listed_specs(route["functions"]):
            other = functions.setdefault(spec.key, GroupFunction(spec, group))
            if other.group != group:
                raise FunctionClash(
                    f"function {spec.key!r} is in group {other.group!r} and in group {group!r}; rename one, give it "
                    "another version, or remove its plugin from a group"
                )
    return list(functions.values())


def write_routes(path: Path, routes: Mapping[str, Route]) -> None:
    """Replace the file at once, so that no reader finds a part of it."""
    written = path.with_suffix(".new")
    written.write_text(json.dumps(routes))
    written.replace(path)


def read_routes(contents: Sequence[bytes]) -> tuple[list[GroupFunction], Mapping[str, Route]]:
    """The functions of the groups, and the routes by group. Raises InvalidConfig."""
    routes: Mapping[str, Route] = json.loads(contents[0])
    return functions_of(routes), routes


def name_of_route(socket: Path) -> str:
    """What the process that listens on this socket is called, by the socket's folder and the beginning of its name.

    The folder is that of one server, and the beginning differs for groups, and for what a reload replaces.
    """
    return f"{socket.parent.name}/{socket.name.partition('-')[0]}"


def require_route(own: str, wanted: str) -> None:
    """Raise StreamError if a stream is not for the process with the route `own`."""
    if wanted == own:
        return
    if wanted.partition("/")[0] == own.partition("/")[0]:
        raise StreamError(
            ErrorKind.WORKER, ErrorCode.SHUTTING_DOWN, "the group of the function is being reloaded", retryable=True
        )
    raise StreamError(
        ErrorKind.PROTOCOL, ErrorCode.UNKNOWN_FUNCTION,
        "this is the port of a group of another server; open the stream at the address of the server",
    )  # fmt: skip
