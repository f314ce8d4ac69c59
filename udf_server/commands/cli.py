"""`udf-server`: serve, dev, reload, health, functions, describe, call, check, new-plugin, token."""

import asyncio
import dataclasses
import functools
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import click
import uvloop

from remote_udf.commands import end_when_interrupted
from remote_udf.errors import RemoteUdfError
from remote_udf.function_names import split_name
from remote_udf.version import __version__
from udf_server.base.output import flush_outputs, queue_outputs
from udf_server.commands.checking import check_settings
from udf_server.commands.new_plugin import new_plugin
from udf_server.commands.serving import serve_alone, serve_by_processes, serve_edited
from udf_server.commands.shown import (
    cleared_cache,
    described,
    evaluate,
    exported_cache,
    health_url,
    is_well,
    listed,
    options_shown,
    shown_of,
    stats_of_cache,
)
from udf_server.declaring.functions import Function
from udf_server.environments.uv import Uv
from udf_server.hosting.registry import Registry
from udf_server.page.texts import with_text_keys
from udf_server.security.access import hashed, new_token
from udf_server.serving.config import FILE_VARIABLE, ServerConfig, load_config, settings
from udf_server.serving.control import ask_reload
from udf_server.serving.devices import environment_of
from udf_server.serving.groups import DEFAULT_GROUP
from udf_server.serving.interpreters import functions_of_groups, run_in_group, sync
from udf_server.serving.membership import Membership, config_of_group, registry_of
from udf_server.serving.process_setup import configure_logging, tune_process
from udf_server.serving.resources import part_of, worker_processes
from udf_server.serving.server import Server
from udf_server.serving.setting_values import switch

__all__ = ["main"]

P = ParamSpec("P")


def _flags(*names: str) -> Callable[[Callable[Concatenate[ServerConfig, P], None]], Callable[..., None]]:
    """Command line flags for these settings, or for all; each says what its definition says.

    The command gets the settings in effect.
    """

    def decorate(command: Callable[Concatenate[ServerConfig, P], None]) -> Callable[..., None]:
        offered = [setting for setting in settings() if not names or setting.name in names]

        @functools.wraps(command)
        def configured(file: Path | None, *arguments: P.args, **options: P.kwargs) -> None:
            flags = {setting.name: options.pop(setting.name) for setting in offered}
            command(load_config(file, os.environ, flags), *arguments, **options)

        decorated: Callable[..., None] = configured
        for setting in reversed(offered):
            flag = "--" + setting.name.replace("_", "-")
            default = "" if setting.default is None else f" [default: {setting.default}]"
            shown = setting.metadata["doc"] + default
            if setting.metadata["reader"] is switch:
                flag = f"{flag}/--no-{setting.name.replace('_', '-')}"
                option = click.option(flag, setting.name, help=shown, default=None)
            elif setting.default == ():
                shown = f"{setting.metadata['doc']} May be given several times."
                option = click.option(flag, setting.name, help=shown, multiple=True)
            else:
                option = click.option(flag, setting.name, help=shown, type=str, metavar="VALUE")
            decorated = option(decorated)
        return click.option(
            "--config", "file", type=click.Path(path_type=Path), envvar=FILE_VARIABLE,
            help="TOML file of settings.",
        )(decorated)  # fmt: skip

    return decorate


def _registry(config: ServerConfig, group: str = DEFAULT_GROUP) -> Registry:
    """The functions of one group of these settings."""
    sys.path.insert(0, str(Path.cwd()))  # modules named with --plugin, as `python -m` would find them
    return registry_of(config_of_group(config, group))


def _find(registry: Registry, name: str, config: ServerConfig, *command: str) -> Function:
    """The function. If a group has it, the command is run there, and this process ends as it does."""
    try:
        wanted, version = split_name(name)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if config.groups and not any(function.spec.name == wanted for function in registry):
        for facts in functions_of_groups(config):
            if facts["name"] == wanted and version in ("", facts["version"]):
                sys.exit(run_in_group(config, facts["group"], command))
    return registry.find(wanted, version)


class _Commands(click.Group):
    """Our own errors are one line and exit status 1, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except RemoteUdfError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="udf-server")
def main() -> None:
    """Hosts user-defined functions for PySpark jobs."""


@main.command()
@_flags()
@click.option("--stop-with-stdin", is_flag=True, help="Stop when standard input ends, as when the parent process dies.")
@click.option("--worker-device", "device", hidden=True, help="The device that this worker process alone sees.")
@click.option("--group", hidden=True, help="This is a worker process, of this group.")
@click.option("--group-socket", "socket", hidden=True, type=click.Path(path_type=Path), help="Where it listens.")
@click.option("--group-port", hidden=True, type=int, help="Where it listens for clients.")
@click.option("--group-routes", "routes", hidden=True, type=click.Path(path_type=Path), help="Where others listen.")
@click.option("--parent", hidden=True, help="Where the parent process counts for all worker processes.")
@click.option("--held", hidden=True, is_flag=True, help="Listen once the parent process says so on standard input.")
def serve(
    config: ServerConfig, stop_with_stdin: bool, device: str | None, group: str | None, socket: Path | None,
    group_port: int | None, routes: Path | None, parent: str | None, held: bool,
) -> None:  # fmt: skip
    """Serve the functions of every plugin until SIGTERM, SIGINT or SIGHUP. With groups, or several
    processes, SIGHUP reloads them.

    Once ready, prints one line of JSON to standard output: where it listens and what it serves. Logs
    go to standard error.
    """
    end_when_interrupted("udf-server")
    queue_outputs()
    named = group is not None and (socket or routes) is not None
    configure_logging(config.log_level, config.log_format, {"group": group} if group is not None and named else {})
    worker, group, number = group is not None, group or DEFAULT_GROUP, worker_processes(config)
    if not worker and (number > 1 or config.groups):
        serve_by_processes(config, number, stop_with_stdin)
        return
    if not worker and config.devices:
        (device,) = config.devices
        # Before plugins are imported, because libraries read it then.
        os.environ.update(environment_of(device, os.environ))
    alone = socket is not None or number == 1
    membership = Membership(group, socket, routes, group_port, alone=alone) if named else None
    try:
        registry = _registry(config, group)
        part = part_of(config, number, group)
        server = Server(part, registry, share_port=worker, device=device, membership=membership, parent=parent)
    except RemoteUdfError as error:
        if worker:
            click.echo(json.dumps({"why": str(error)}))  # the parent tells it to who reloads
        raise
    tune_process()
    uvloop.run(serve_alone(server, stop_with_stdin, worker=worker, held=held))
    flush_outputs()
    # Calls that do not return hold threads that cannot be joined.
    os._exit(0)


@main.command()
@click.argument("groups", nargs=-1)
@click.option("--changed", is_flag=True, help="Functions may have other types, although they keep their version.")
@_flags("metrics_port")
def reload(config: ServerConfig, groups: tuple[str, ...], changed: bool) -> None:
    """Run GROUPS of the server with the same settings with their new code; all groups if none is named."""
    for line in ask_reload(config.metrics_port, groups, changed=changed):
        click.echo(line)


@main.command()
@click.argument("files", nargs=-1, metavar="[FILE]...")
@_flags()
@click.option("--stop-with-stdin", is_flag=True, help="Stop when standard input ends, as when the parent process dies.")
def dev(config: ServerConfig, files: tuple[str, ...], stop_with_stdin: bool) -> None:
    """Serve plugins while you edit them: those of `serve`, and FILEs, always with the code that they have now.

    The files of plugins, and what they import from their own folders, are compared when a query begins. If they were
    edited, a fresh process serves the query. A process that serves an older query ends with it.
    """
    end_when_interrupted("udf-server")
    configure_logging(config.log_level, config.log_format)
    sys.path.insert(0, str(Path.cwd()))
    edited = dataclasses.replace(config, plugin=(*config.plugin, *files))
    sys.exit(serve_edited(edited, stop_with_stdin=stop_with_stdin))


@main.command()
@_flags("metrics_host", "metrics_port")
@click.option("--alive", is_flag=True, help="Check /livez instead of /readyz; a draining server is live and not ready.")
def health(config: ServerConfig, alive: bool) -> None:
    """Ask the server with the same settings, on this machine, whether it is ready: exit status 0 or 1."""
    good, said = is_well(health_url(config, alive=alive))
    if not good:
        raise click.ClickException(said)
    click.echo(said)


@main.command()
@click.option("--json", "lines", is_flag=True, help="Print a line of JSON for each function.")
@click.option("--options", "name", metavar="NAME", help="Show the options of this function, and where they come from.")
@_flags("plugin", "block", "entry_points")
def functions(config: ServerConfig, lines: bool, name: str | None) -> None:
    """List the functions of the plugins that a server with these settings would load.

    On a terminal, long signatures are cut to its width; `describe` shows all of one.
    """
    if name is not None:
        function = _find(_registry(config), name, config, "functions", "--options", name)
        click.echo(options_shown(function, config.functions))
        return
    found: list[Mapping[str, str]] = [*shown_of(_registry(config))]
    if config.groups:
        found = [*({**facts, "group": DEFAULT_GROUP} for facts in found), *functions_of_groups(config)]
    if lines:
        for facts in found:
            click.echo(json.dumps(facts, ensure_ascii=False))
        return
    click.echo(listed(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))


@main.command()
@click.argument("name")
@_flags("plugin", "block", "entry_points")
def describe(config: ServerConfig, name: str) -> None:
    """Show one function: NAME or NAME@VERSION."""
    registry = _registry(config).configured(config.functions)
    function = _find(registry, name, config, "describe", name)
    click.echo(described(function, registry.plugins[function.spec.key]))


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("name")
@click.argument("arguments", nargs=-1)
@_flags("plugin", "block", "entry_points")
def call(config: ServerConfig, name: str, arguments: tuple[str, ...]) -> None:
    """Call a function once, in this process: NAME or NAME@VERSION, then its ARGUMENTS as JSON.

    What is not JSON is taken as text, so quotes may be omitted. Prints the value as JSON, or the
    row's error and exit status 1.
    """
    registry = _registry(config).configured(config.functions)
    function = _find(registry, name, config, "call", name, *arguments)
    # A refusal is this command's own error. The server's warning of it would be a line without its fields.
    logging.getLogger("udf_server").setLevel(logging.ERROR)
    value, error = asyncio.run(evaluate(function, arguments))
    if error is not None:
        raise click.ClickException(f"{error.code}: {error.message}\n{error.traceback}".rstrip())
    click.echo(json.dumps(with_text_keys(value), default=str, ensure_ascii=False))


@main.command("sync")
@click.option("--upgrade", is_flag=True, help="Take newer packages than the lock has.")
@click.option("--prune", is_flag=True, help="Remove environments that no group has and no server uses.")
@click.option(
    "--find-links", multiple=True, metavar="FOLDER", help="Take wheels from here, too. May be given several times."
)
@click.option("--no-index", is_flag=True, help="Take wheels from there only.")
@_flags("environments", "groups_lock")
def sync_command(config: ServerConfig, upgrade: bool, prune: bool, find_links: tuple[str, ...], no_index: bool) -> None:
    """Lock the packages of the groups in the file of settings, and install them into an environment each.

    Packages are taken from where pip would take them. A lock that fits the groups is kept, so that all servers with the
    same two files have the same packages.
    """
    for line in sync(config, Uv(find_links, no_index=no_index), upgrade=upgrade, prune=prune):
        click.echo(line)


@main.command()
def token() -> None:
    """Make a bearer token: prints it, and its hash for the access file.

    The token is for the caller alone; the server needs no more than the hash.
    """
    made = new_token()
    click.echo(f"token: {made}")
    click.echo(f'token_sha256 = ["{hashed(made)}"]')


@main.command()
@click.argument("plugin", required=False)
@click.option(
    "--config", "file", type=click.Path(path_type=Path), envvar=FILE_VARIABLE,
    help="Check this TOML file of settings, the environment, and the plugins and files that they name.",
)  # fmt: skip
@click.option("--connect", is_flag=True, help="Ask each Redis of the settings, too.")
def check(plugin: str | None, file: Path | None, connect: bool) -> None:
    """Check PLUGIN, a module or .py file, or else the settings, as a server would when it starts.

    Names everything that the server would refuse, and exits with status 1 if there is anything, and everything that it
    would warn of. It starts nothing, and does not try whether the ports are free.
    """
    if plugin is None:
        found = check_settings(file, os.environ, connect=connect)
        for text in found.refused:
            click.echo(f"refused: {text}")
        for text in found.warned:
            click.echo(f"warning: {text}")
        numbers = f"functions: {found.functions}, refused: {len(found.refused)}, warnings: {len(found.warned)}"
        click.echo(f"{file or 'the environment'}: {numbers}")
        sys.exit(bool(found.refused))
    sys.path.insert(0, str(Path.cwd()))
    registry = registry_of(ServerConfig(plugin=(plugin,), entry_points=False))
    click.echo(listed(shown_of(registry)))
    click.echo(f"{plugin}: {len(list(registry))} functions, nothing wrong")


@main.group("cache")
def cache_group() -> None:
    """Show, clear or export the cache of the server with the same settings, if it is a folder or a Redis."""


@cache_group.command("stats")
@_flags("cache_url")
def cache_stats(config: ServerConfig) -> None:
    """Show the entries and bytes of each function."""
    click.echo(asyncio.run(stats_of_cache(config)))


@cache_group.command("clear")
@click.option("--function", "function", help="Name and version, such as classify@1.")
@click.option("--all", "everything", is_flag=True, help="Remove the entries of all functions.")
@_flags("cache_url")
def cache_clear(config: ServerConfig, function: str | None, everything: bool) -> None:
    """Remove the entries of one function, or all."""
    if everything == bool(function):
        raise click.UsageError("give either --function or --all")
    if function is not None and "@" not in function:
        raise click.UsageError(f"--function {function}: write the version too, such as {function}@1")
    click.echo(f"{asyncio.run(cleared_cache(config, function)):,} entries removed")


@cache_group.command("export")
@_flags("cache_url")
def cache_export(config: ServerConfig) -> None:
    """Print each entry as a line of JSON: its function, key and bytes, as they are stored."""

    async def write() -> None:
        async for line in exported_cache(config):
            click.echo(line)

    asyncio.run(write())


@main.command("new-plugin")
@click.argument("name")
@click.option(
    "--directory", type=click.Path(file_okay=False, path_type=Path), default=Path(), show_default="here",
    help="Directory in which to create the package.",
)  # fmt: skip
def new_plugin_command(name: str, directory: Path) -> None:
    """Write the package of a new plugin, with functions to replace, tests and settings of tools.

    NAME is the package's, such as acme-prices. A folder that is there is never written to.
    """
    try:
        written = new_plugin(name, directory)
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo("\n".join(str(path) for path in written))
    click.echo(f"next: pip install -e '{directory / name}[dev]', then pytest and mypy in that folder")
