"""Settings of the server. Each is defined once for file, environment and command line.

A flag overrides an environment variable (`UDF_CONFIG_PORT`), which overrides the file (TOML, `port =
50051`), which overrides the default. The prefix is not UDF_SERVER_, because Kubernetes itself sets
UDF_SERVER_PORT if there is a service of that name.
"""

import dataclasses
import math
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remote_udf.effective_options import canonical
from remote_udf.errors import InvalidOption
from remote_udf.option_values import size, unknown
from remote_udf.options import HOSTED_OPTIONS, SCALAR_OPTIONS
from udf_server.base.errors import InvalidConfig
from udf_server.hosting.turns import DEFAULT_CALLS
from udf_server.hosting.weights import parse_weights
from udf_server.limits.settings import GuardSettings, WithoutCoordination
from udf_server.runners.room import RESULT_BYTES
from udf_server.security.callers import CallerSettings, parse_callers
from udf_server.serving.devices import named_devices

__all__ = ["AT_LEAST", "ENVIRONMENT_PREFIX", "ServerConfig", "load_config", "settings"]

ENVIRONMENT_PREFIX = "UDF_CONFIG_"
TABLES = ("functions", "guards", "callers", "weights")
"""Settings that can be set only in a file."""
GROUPS = ("cache", "coordination")
"""Tables of a file whose settings begin with the name of the table elsewhere."""
AT_LEAST = {
    "processes": 0, "port": 0, "metrics_port": 0, "calls_per_function": 1, "threads_per_function": 1,
    "lost_calls_per_function": 0, "max_streams": 1, "max_streams_per_caller": 1, "max_connections": 1,
    "idle_seconds": 1, "keepalive_seconds": 1, "max_message_bytes": 1 << 16, "max_stream_rows": 1,
    "max_stream_bytes": 1 << 16, "max_function_rows": 1, "max_stream_result_bytes": 1 << 16,
    "max_server_bytes": 1 << 16, "drain_seconds": 0, "cache_max_bytes": 1 << 16,
}  # fmt: skip
"""The least value of each setting that is a number."""
_EXPECTED = {
    bool: "true or false", int: "a whole number", float: "a number", tuple[str, ...]: "a list of texts",
    str: "a text that is not empty", str | None: "a text that is not empty",
}  # fmt: skip


def _setting(default: Any, doc: str, *, secret: bool = False, divided: bool = False) -> Any:
    """`divided` settings bound all worker processes together: each process gets its part."""
    return field(default=default, repr=not secret, metadata={"doc": doc, "divided": divided})


@dataclass(frozen=True)
class ServerConfig:
    """All settings, validated. Raises InvalidConfig for an invalid value."""

    host: str = _setting("127.0.0.1", "Address to listen on.")
    port: int = _setting(50051, "Port to listen on; 0 picks a free one.")
    processes: int = _setting(
        0,
        "Number of worker processes on the port; each uses one core. 0: one for each whole core of the container's CPU "
        "limit, or one process if nothing limits the CPU time or if there is a unix_socket. devices have one each.",
    )
    devices: tuple[str, ...] = _setting(
        (),
        "Accelerator with a worker process that sees no other one: `cuda:0` or `0`, `rocm:0` (AMD), `xpu:0` (Intel). "
        "Commas separate several.",
    )
    unix_socket: str | None = _setting(None, "Listen on this Unix socket instead of host and port.")
    metrics_host: str = _setting("127.0.0.1", "Address of the HTTP server for metrics and health.")
    metrics_port: int = _setting(9464, "Port of the HTTP server; 0 picks a free one.")
    page: bool = _setting(True, "Serve the web UI on the HTTP server: functions, their documentation and rates.")
    try_calls: bool = _setting(False, "Let users call scalar functions in the web UI, under the access rules.")
    tls_certificate: str | None = _setting(None, "PEM file of the server's certificate chain.")
    tls_key: str | None = _setting(None, "PEM file of its private key.")
    tls_client_ca: str | None = _setting(
        None,
        "PEM file of a CA certificate. Enables mTLS: clients must present a certificate signed by this CA.",
    )
    access_file: str | None = _setting(None, "TOML file of access rules: bearer tokens and client certificates.")
    allow_anonymous: bool = _setting(False, "Accept every caller, also beyond this machine.")
    allow_plaintext: bool = _setting(False, "Accept bearer tokens without TLS beyond this machine, as in a mesh.")
    plugin: tuple[str, ...] = _setting((), "Module or .py file to load as a plugin, in addition to installed ones.")
    block: tuple[str, ...] = _setting((), "Name of a plugin that is not loaded.")
    entry_points: bool = _setting(True, "Load the plugins of installed packages.")
    calls_per_function: int = _setting(
        DEFAULT_CALLS,
        "Maximum number of calls in flight of one `async def` function, over all streams of a process; others wait.",
    )
    threads_per_function: int = _setting(
        64, "Maximum number of threads of one function, over all streams of a process; fewer while they only compute."
    )
    lost_calls_per_function: int = _setting(
        16, "A function is refused once this many of its calls have not returned; each may hold a thread."
    )
    max_streams: int = _setting(
        4_000, "Maximum number of open streams; further ones are refused as OVERLOADED.", divided=True
    )
    max_streams_per_caller: int = _setting(3_000, "Maximum number of open streams of one caller.", divided=True)
    max_connections: int = _setting(
        8_192,
        "Maximum number of connections to the gRPC port; others are closed. The limit of open files may lower it.",
        divided=True,
    )
    idle_seconds: float = _setting(
        300.0, "A stream ends after this time if its client sends nothing and waits for nothing, or reads nothing."
    )
    keepalive_seconds: float = _setting(
        30.0,
        "Without data for this time, the server pings the client; without an answer in the same time, it disconnects.",
    )
    max_message_bytes: int = _setting(64 << 20, "Largest message, in both directions.")
    max_stream_rows: int = _setting(
        1_000_000, "Back-pressure: the server stops reading a stream while it has this many unanswered rows."
    )
    max_stream_bytes: int = _setting(
        128 << 20, "Back-pressure: the server stops reading a stream while it has this many unanswered bytes."
    )
    max_stream_result_bytes: int = _setting(
        RESULT_BYTES,
        "Back-pressure: a function waits while its client has not read this many bytes of results of a stream.",
    )
    max_function_rows: int = _setting(
        10_000_000, "Back-pressure: the streams of a function wait while it has this many unanswered rows.",
        divided=True,
    )  # fmt: skip
    max_server_bytes: int = _setting(
        2 << 30,
        "Back-pressure: streams and functions wait while all streams hold this many bytes of rows and unread results.",
        divided=True,
    )
    shared_memory: bool = _setting(True, "Exchange rows with callers on this host through shared memory.")
    cache_url: str = _setting(
        "memory:",
        "Where outcomes of calls with `cache-ttl` are kept: `memory:` of each process, `file:///folder` for the "
        "processes of a host, or `redis://host:6379/0` for all servers. Set a URL with a password in the environment.",
        secret=True,
    )
    cache_max_bytes: int = _setting(
        256 << 20,
        "Maximum bytes of a cache in memory or in a file. The outcomes that were not used for longest are evicted. For "
        "Redis, set its `maxmemory`.",
        divided=True,
    )
    cache_encryption_variable: str | None = _setting(
        None,
        "Environment variable with a key, 32 bytes as base64, with which the entries of the cache are encrypted.",
    )
    coordination_url: str | None = _setting(
        None,
        "Redis that the servers share, `redis://host:6379/0`: guards and budgets then hold for all of them together. "
        "Without it they apply per server: its worker processes share them. Set a URL with a password in the "
        "environment.",
        secret=True,
    )
    coordination_namespace: str = _setting(
        "default", "Servers with the same namespace, in the same Redis, share guards. They must have the same settings."
    )
    budgets_without_coordination: str = _setting(
        "fail-closed",
        "While the Redis of coordination_url is away, calls of jobs with a budget fail (`fail-closed`), or each "
        "process takes the rest of the budget for its own (`fail-open`).",
    )
    drain_seconds: float = _setting(30.0, "How long open streams may continue after SIGTERM.")
    log_level: str = _setting("info", "debug, info, warning or error.")
    log_format: str = _setting("text", "text, or json: one object per line.")
    functions: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict,
        metadata={"doc": "Default options of calls by function name, '*' for all; only in the file."},
    )

    guards: Mapping[str, GuardSettings] = field(
        default_factory=dict,
        metadata={"doc": "Guards by function name; only in the file."},
    )
    callers: Mapping[str, CallerSettings] = field(
        default_factory=dict,
        metadata={"doc": "Shares, priorities, limits and budgets by caller, '*' for all others; only in the file."},
    )
    weights: Mapping[str, float] = field(
        default_factory=dict,
        metadata={"doc": "Shares of the jobs that get a version of a function, by `name@version`; only in the file."},
    )

    def __post_init__(self) -> None:
        for name, least in AT_LEAST.items():
            if getattr(self, name) < least:
                raise InvalidConfig(f"setting {name!r}: {getattr(self, name)} is less than {least}")
        object.__setattr__(self, "devices", named_devices(self.devices))
        if self.devices and self.processes not in (0, len(self.devices)):
            raise InvalidConfig(
                f"setting 'processes': {self.processes}, but each of the {len(self.devices)} devices has one process "
                f"(devices: {', '.join(self.devices)}); remove 'processes', or list as many devices"
            )
        for name in ("port", "metrics_port"):
            if getattr(self, name) > 65_535:
                raise InvalidConfig(f"setting {name!r}: {getattr(self, name)} is not a port")
        for name, choices in (
            ("log_level", ("debug", "info", "warning", "error")), ("log_format", ("text", "json")),
            ("budgets_without_coordination", tuple(WithoutCoordination)),
        ):  # fmt: skip
            if getattr(self, name) not in choices:
                raise InvalidConfig(f"setting {name!r}: {getattr(self, name)!r} is not one of {', '.join(choices)}")
        try:
            checked = {
                name: canonical(options, source=f"setting functions.{name}", known=(SCALAR_OPTIONS, HOSTED_OPTIONS))
                for name, options in self.functions.items()
            }
        except InvalidOption as error:
            raise InvalidConfig(str(error)) from error
        object.__setattr__(self, "functions", checked)

    @property
    def coordinated(self) -> list[str]:
        """The names of the limits that all servers with the same `coordination_url` keep together."""
        budgets = [f"callers.{name}.budget" for name, caller in self.callers.items() if caller.budget is not None]
        return [*(f"guards.{name}" for name, guard in self.guards.items() if guard.has_sums), *budgets]


def settings() -> Sequence[dataclasses.Field[Any]]:
    """The fields that a flag or environment variable may set: all except tables."""
    return [setting for setting in dataclasses.fields(ServerConfig) if setting.name not in TABLES]


def load_config(
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> ServerConfig:
    """The settings in effect. `flags` that are None or empty count as not given.

    Raises InvalidConfig if a setting is unknown or malformed, or if the file cannot be read. The message
    names the source; for an unknown setting it lists the known ones.
    """
    values = _from_file(Path(file)) if file is not None else {}
    known = {setting.name for setting in settings()}
    for variable, text in (environment or {}).items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            values[_known(name, known, f"environment variable {variable}")] = text
    values |= {name: value for name, value in (flags or {}).items() if value not in (None, ())}
    hints = typing.get_type_hints(ServerConfig)
    return ServerConfig(**{name: _parse(name, value, hints[name]) for name, value in values.items()})


def _from_file(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfig(f"config file {path}: {error}") from error
    known = {setting.name for setting in dataclasses.fields(ServerConfig)}
    spelled = [(name, name, value) for name, value in table.items() if name not in GROUPS]
    for group in GROUPS:
        found = table.get(group, {})
        if not isinstance(found, dict):
            raise InvalidConfig(f"config file {path}: setting {group!r}: {found!r} is not a table")
        spelled += [(f"[{group}] {name}", f"{group}_{name}", value) for name, value in found.items()]
    values: dict[str, Any] = {}
    spellings: dict[str, str] = {}
    for spelling, whole, value in spelled:
        name = _known(whole, known, f"config file {path}")
        if name in values:
            raise InvalidConfig(
                f"config file {path}: setting {name!r} is there twice, as {spellings[name]!r} and {spelling!r}"
            )
        values[name], spellings[name] = value, spelling
    return values


def _known(name: str, known: set[str], source: str) -> str:
    plain = name.replace("-", "_")
    if plain not in known:
        raise InvalidConfig(f"{source}: {unknown('setting', name, known)}")
    return plain


def _parse(name: str, value: Any, hint: Any) -> Any:
    """Convert text to the setting's type. A value from a file must already have that type."""
    try:
        if hint is bool and isinstance(value, str):
            return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[value.lower()]
        if hint == tuple[str, ...]:
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(part.strip() for part in parts if part.strip())
        if name.endswith("_bytes") and isinstance(value, str):
            return size(value)
        if hint in (int, float) and not isinstance(value, bool):
            number = hint(value)
            if math.isfinite(number) and (isinstance(value, str) or number == value):
                return number
        if hint is bool and isinstance(value, bool):
            return value
        # An empty text, as of a variable that is not set, would turn off access, TLS or encryption, or open an address.
        if hint in (str, str | None) and isinstance(value, str) and value.strip():
            return value
        if name == "guards":
            return {function: GuardSettings.parse(function, table) for function, table in value.items()}
        if name == "callers":
            return parse_callers(value)
        if name == "weights":
            return parse_weights(value)
        if name == "functions" and all(isinstance(options, dict) for options in value.values()):
            return value
    except InvalidConfig:
        raise
    except InvalidOption as error:
        raise InvalidConfig(f"setting {name!r}: {error}") from None
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        pass
    raise InvalidConfig(f"setting {name!r}: {value!r} is not valid (expected {_EXPECTED.get(hint, 'a table')})")
