"""Settings of the server. Each is defined once for file, environment and command line.

A flag overrides an environment variable (`UDF_CONFIG_PORT`), which overrides the file (TOML, `port =
50051`), which overrides the default. The prefix is not UDF_SERVER_, because Kubernetes itself sets
UDF_SERVER_PORT if there is a service of that name.
"""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from remote_udf.effective_options import canonical
from remote_udf.errors import InvalidOption
from remote_udf.option_tables import mapping, option, read_values, table_of
from remote_udf.option_values import ValueReader, unknown
from remote_udf.options import AGGREGATE_OPTIONS, AT_MOST, CAPS, HOSTED_OPTIONS, SCALAR_OPTIONS
from udf_server.base.errors import InvalidConfig
from udf_server.environments.packages import LOCK
from udf_server.hosting.registry import parse_weights
from udf_server.hosting.turns import DEFAULT_CALLS
from udf_server.limits.settings import GuardSettings, WithoutCoordination
from udf_server.runners.room import RESULT_BYTES
from udf_server.security.callers import CallerSettings, parse_callers
from udf_server.serving.devices import named_devices
from udf_server.serving.groups import LAST_PORT, GroupSettings, parse_groups
from udf_server.serving.setting_values import bytes_, in_file, invalid, nonblank, number, switch, texts, whole_number

__all__ = [
    "AT_LEAST", "ENVIRONMENT_PREFIX", "FILE_VARIABLE", "ServerConfig", "config_of", "load_config", "read_table",
    "settings",
]  # fmt: skip

ENVIRONMENT_PREFIX = "UDF_CONFIG_"
FILE_VARIABLE = f"{ENVIRONMENT_PREFIX}FILE"
"""Names the file, and is no setting."""
TABLES = ("functions", "guards", "callers", "weights", "groups")
"""Settings that can be set only in a file."""
_OPTIONS = (SCALAR_OPTIONS, HOSTED_OPTIONS, AGGREGATE_OPTIONS, CAPS)
SECTIONS = ("cache", "coordination")
"""Tables of a file whose settings begin with the name of the table elsewhere."""
ValueT = TypeVar("ValueT")
DefaultT = TypeVar("DefaultT")


@in_file
def _functions(tables: Mapping[str, Mapping[str, str | Mapping[str, str]]]) -> Mapping[str, Mapping[str, str]]:
    if not all(isinstance(options, dict) for options in tables.values()):
        raise invalid(tables, "a table")
    return {name: dict(_flat(options)) for name, options in tables.items()}


def _flat(options: Mapping[str, str | Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """The options of a table, with caps by names such as `at-most.timeout`."""
    for name, value in options.items():
        if isinstance(value, Mapping) and f"{name.replace('_', '-')}." == AT_MOST:
            yield from ((f"{AT_MOST}{option}", most) for option, most in value.items())
        else:
            yield name, value  # type: ignore[misc] # `canonical` refuses another table


@in_file
def _guards(tables: Mapping[str, Mapping[str, str | float | Sequence[str]]]) -> Mapping[str, GuardSettings]:
    return {function: GuardSettings.parse(function, table) for function, table in tables.items()}


def _setting(
    read: ValueReader[ValueT], default: DefaultT, doc: str, *, secret: bool = False, divided: bool = False,
    least: int | None = None, most: int | None = None, choices: Sequence[str] = (),
) -> ValueT | DefaultT:  # fmt: skip
    """`divided` settings bound all worker processes together: each process gets its part, but not less than `least`."""
    return option(read, default, doc, secret=secret, divided=divided, least=least, most=most, choices=choices)


def _require_within(setting: dataclasses.Field[Any], value: Any) -> None:
    """Raise InvalidConfig for a value that the setting does not allow."""
    least, most, choices = (setting.metadata[name] for name in ("least", "most", "choices"))
    if least is not None and value < least:
        raise InvalidConfig(f"setting {setting.name!r}: {value} is less than {least}")
    if most is not None and value > most:
        raise InvalidConfig(f"setting {setting.name!r}: {value} is not a port")
    if choices and value not in choices:
        raise InvalidConfig(f"setting {setting.name!r}: {value!r} is not one of {', '.join(choices)}")


@dataclass(frozen=True)
class ServerConfig:
    """All settings, validated. Raises InvalidConfig for an invalid value."""

    host: str = _setting(nonblank, "127.0.0.1", "Address to listen on.")
    port: int = _setting(whole_number, 50051, "Port to listen on; 0 picks a free one.", least=0, most=LAST_PORT)
    processes: int = _setting(
        whole_number, 0,
        "Number of worker processes on the port; each uses one core. 0: one for each whole core of the container's CPU "
        "limit, or one process if nothing limits the CPU time or if there is a unix_socket. devices have one each.",
        least=0,
    )  # fmt: skip
    devices: tuple[str, ...] = _setting(
        texts, (),
        "Accelerator with a worker process that sees no other one: `cuda:0` or `0`, `rocm:0` (AMD), `xpu:0` (Intel). "
        "Commas separate several.",
    )  # fmt: skip
    unix_socket: str | None = _setting(nonblank, None, "Listen on this Unix socket instead of host and port.")
    metrics_host: str = _setting(nonblank, "127.0.0.1", "Address of the HTTP server for metrics and health.")
    metrics_port: int = _setting(
        whole_number, 9464, "Port of the HTTP server; 0 picks a free one.", least=0, most=LAST_PORT
    )
    page: bool = _setting(
        switch, True, "Serve the web UI on the HTTP server: functions, their documentation and rates."
    )
    try_calls: bool = _setting(switch, False, "Let users call scalar functions in the web UI, under the access rules.")
    tls_certificate: str | None = _setting(nonblank, None, "PEM file of the server's certificate chain.")
    tls_key: str | None = _setting(nonblank, None, "PEM file of its private key.")
    tls_client_ca: str | None = _setting(
        nonblank, None,
        "PEM file of a CA certificate. Enables mTLS: clients must present a certificate signed by this CA.",
    )  # fmt: skip
    access_file: str | None = _setting(
        nonblank, None, "TOML file of access rules: bearer tokens and client certificates."
    )
    allow_anonymous: bool = _setting(switch, False, "Accept every caller, also beyond this machine.")
    allow_plaintext: bool = _setting(
        switch, False, "Accept bearer tokens without TLS beyond this machine, as in a mesh."
    )
    plugin: tuple[str, ...] = _setting(
        texts, (), "Plugin to load: a module, a .py file, or the name of an installed plugin."
    )
    block: tuple[str, ...] = _setting(texts, (), "Name of a plugin that is not loaded.")
    entry_points: bool | None = _setting(
        switch, None,
        "`true`: load every installed plugin, beside those that are named. `false`: only those. By default installed "
        "plugins are loaded if neither `plugin` nor a group names one, and one that cannot be loaded is skipped.",
    )  # fmt: skip
    calls_per_function: int = _setting(
        whole_number, DEFAULT_CALLS,
        "Maximum number of calls in flight of one `async def` function, over all streams of a process; others wait.",
        least=1,
    )  # fmt: skip
    threads_per_function: int = _setting(
        whole_number, 64,
        "Maximum number of threads of one function, over all streams of a process; fewer while they only compute.",
        least=1,
    )  # fmt: skip
    lost_calls_per_function: int = _setting(
        whole_number, 16,
        "A function is refused once this many of its calls have not returned; each may hold a thread.",
        least=0,
    )  # fmt: skip
    max_streams: int = _setting(
        whole_number, 4_000,
        "Maximum number of open streams; further ones are refused as OVERLOADED.",
        least=1,
    )  # fmt: skip
    max_streams_per_caller: int = _setting(
        whole_number, 3_000, "Maximum number of open streams of one caller.", least=1
    )
    max_connections: int = _setting(
        whole_number, 8_192,
        "Maximum number of connections to the gRPC port; others are closed. The limit of open files may lower it.",
        least=1, divided=True,
    )  # fmt: skip
    idle_seconds: float = _setting(
        number, 300.0,
        "A stream ends after this time if its client sends nothing and waits for nothing, or reads nothing.",
        least=1,
    )  # fmt: skip
    keepalive_seconds: float = _setting(
        number, 30.0,
        "Without data for this time, the server pings the client; without an answer in the same time, it disconnects.",
        least=1,
    )  # fmt: skip
    max_message_bytes: int = _setting(bytes_, 64 << 20, "Largest message, in both directions.", least=1 << 16)
    max_stream_rows: int = _setting(
        whole_number, 1_000_000,
        "Back-pressure: the server stops reading a stream while it has this many unanswered rows.",
        least=1,
    )  # fmt: skip
    max_stream_bytes: int = _setting(
        bytes_, 128 << 20,
        "Back-pressure: the server stops reading a stream while it has this many unanswered bytes.",
        least=1 << 16,
    )  # fmt: skip
    max_stream_result_bytes: int = _setting(
        bytes_, RESULT_BYTES,
        "Back-pressure: a function waits while its client has not read this many bytes of results of a stream.",
        least=1 << 16,
    )  # fmt: skip
    max_function_rows: int = _setting(
        whole_number, 10_000_000,
        "Back-pressure: the streams of a function wait while it has this many unanswered rows.",
        least=1, divided=True,
    )  # fmt: skip
    max_server_bytes: int = _setting(
        bytes_, 2 << 30,
        "Back-pressure: streams and functions wait while all streams hold this many bytes of rows and unread results.",
        least=1 << 16, divided=True,
    )  # fmt: skip
    shared_memory: bool = _setting(switch, True, "Exchange rows with callers on this host through shared memory.")
    cache_url: str = _setting(
        nonblank, "memory:",
        "Where outcomes of calls with `cache-ttl` are kept: `memory:` of each process, `file:///folder` for the "
        "processes of a host, or `redis://host:6379/0` for all servers. Set a URL with a password in the environment.",
        secret=True,
    )  # fmt: skip
    cache_max_bytes: int = _setting(
        bytes_, 256 << 20,
        "Maximum bytes of a cache in memory or in a file. The outcomes that were not used for longest are evicted. For "
        "Redis, set its `maxmemory`.",
        least=1 << 16, divided=True,
    )  # fmt: skip
    cache_encryption_variable: str | None = _setting(
        nonblank, None,
        "Environment variable with a key, 32 bytes as base64, with which the entries of the cache are encrypted.",
    )  # fmt: skip
    coordination_url: str | None = _setting(
        nonblank, None,
        "Redis that the servers share, `redis://host:6379/0`: guards and budgets then hold for all of them together. "
        "Without it they apply per server: its worker processes share them. Set a URL with a password in the "
        "environment.",
        secret=True,
    )  # fmt: skip
    coordination_namespace: str = _setting(
        nonblank, "default",
        "Servers with the same namespace, in the same Redis, share guards. They must have the same settings.",
    )  # fmt: skip
    budgets_without_coordination: str = _setting(
        nonblank, "fail-closed",
        "While the Redis of coordination_url is away, calls of jobs with a budget fail (`fail-closed`), or each "
        "process takes the rest of the budget for its own (`fail-open`).",
        choices=tuple(WithoutCoordination),
    )  # fmt: skip
    environments: str | None = _setting(
        nonblank, None,
        "Folder of the environments of groups with packages of their own, which `udf-server sync` builds. By default "
        "one in the user's cache.",
    )  # fmt: skip
    groups_lock: str | None = _setting(
        nonblank, None, "Lock of the packages of groups. By default `groups.lock` beside the file of settings."
    )
    build: bool = _setting(switch, True, "Build an environment that is missing when the server starts, from the lock.")
    drain_seconds: float = _setting(number, 30.0, "How long open streams may continue after SIGTERM.", least=0)
    log_level: str = _setting(
        nonblank, "info", "debug, info, warning or error.", choices=("debug", "info", "warning", "error")
    )
    log_format: str = _setting(nonblank, "text", "text, or json: one object per line.", choices=("text", "json"))
    functions: Mapping[str, Mapping[str, str]] = mapping(
        _functions,
        "Options of calls by function name, which override declarations; '*' for the defaults of all. `at-most.OPTION` "
        "is a cap. Only in the file.",
    )
    guards: Mapping[str, GuardSettings] = mapping(_guards, "Guards by function name; only in the file.")
    callers: Mapping[str, CallerSettings] = mapping(
        in_file(parse_callers),
        "Shares, priorities, limits and budgets by caller, '*' for all others; only in the file.",
    )
    weights: Mapping[str, float] = mapping(
        in_file(parse_weights),
        "Shares of the jobs that get a version of a function, by `name@version`; only in the file.",
    )
    groups: Mapping[str, GroupSettings] = mapping(
        in_file(parse_groups),
        "Plugins with a Python and processes of their own, by the name of their group; only in the file.",
    )

    def __post_init__(self) -> None:
        for setting in settings():
            _require_within(setting, getattr(self, setting.name))
        object.__setattr__(self, "devices", named_devices(self.devices, self.processes))
        try:
            checked = {
                name: canonical(options, source=f"setting functions.{name}", known=_OPTIONS)
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


AT_LEAST: Mapping[str, int] = {
    setting.name: setting.metadata["least"] for setting in settings() if setting.metadata["least"] is not None
}
"""The least value of each setting that is a number."""


def load_config(
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> ServerConfig:
    """The settings in effect. `flags` that are None or empty count as not given.

    Raises InvalidConfig if a setting is unknown or malformed, or if the file cannot be read. The message
    names the source; for an unknown setting it lists the known ones.
    """
    return config_of({} if file is None else read_table(Path(file)), file, environment, flags)


def read_table(path: Path) -> Mapping[str, object]:
    """The file as TOML. Raises InvalidConfig."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidConfig(f"config file {path}: {error}") from error


def config_of(
    table: Mapping[str, object],
    file: str | Path | None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> ServerConfig:
    """The same as `load_config`, for a table that was read from the file."""
    values = _from_file(table, Path(file)) if file is not None else {}
    if file is not None and "groups" in values:
        values.setdefault("groups_lock", str(Path(file).with_name(LOCK)))
    known = {setting.name for setting in settings()}
    for variable, text in (environment or {}).items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable != FILE_VARIABLE:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            values[_known(name, known, f"environment variable {variable}")] = text
    values |= {name: value for name, value in (flags or {}).items() if value not in (None, ())}
    given = {name.replace("_", "-"): value for name, value in values.items()}
    try:
        parsed = read_values(table_of(ServerConfig), given, lambda setting: f"setting {setting.attribute!r}")
    except InvalidOption as error:
        raise InvalidConfig(str(error)) from None
    return ServerConfig(**parsed)


def _from_file(table: Mapping[str, object], path: Path) -> dict[str, Any]:
    known = {setting.name for setting in dataclasses.fields(ServerConfig)}
    spelled = [(name, name, value) for name, value in table.items() if name not in SECTIONS]
    for section in SECTIONS:
        found = table.get(section, {})
        if not isinstance(found, dict):
            raise InvalidConfig(f"config file {path}: setting {section!r}: {found!r} is not a table")
        spelled += [(f"[{section}] {name}", f"{section}_{name}", value) for name, value in found.items()]
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
