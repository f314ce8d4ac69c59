"""What `udf-server serve` runs: a server in this process, or worker processes and their parent, until a signal."""

import asyncio
import functools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import click

from remote_udf.commands import INTERRUPTED
from remote_udf.errors import RemoteUdfError
from remote_udf.version import __version__
from udf_server.base.errors import InvalidConfig
from udf_server.serving.config import ServerConfig, load_config, settings
from udf_server.serving.control import ControlServer, Reload
from udf_server.serving.generations import Generations
from udf_server.serving.processes import Processes
from udf_server.serving.server import Server
from udf_server.serving.worker_process import LEAVE, LISTEN, ReadyLine
from udf_server.streams.routes import packed_specs

__all__ = ["serve_alone", "serve_by_processes", "serve_edited"]

log = logging.getLogger(__name__)


def serve_by_processes(config: ServerConfig, number: int, stop_with_stdin: bool) -> None:
    """Serve by this number of processes of the default group, and those of groups. Call it within the command."""
    processes = Processes(config, number, sys.argv[1:])
    settings_of = functools.partial(_read_again, dict(click.get_current_context().params))

    def reload(groups: Sequence[str], changed: bool) -> list[str]:
        return processes.reload(settings_of(), groups, changed=changed)

    def reload_all() -> None:
        try:
            reload((), False)
        except RemoteUdfError as error:
            log.error("not reloaded", extra={"why": str(error)})

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: processes.stop())
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=reload_all, daemon=True).start())
    try:
        ready = processes.start()
    except InvalidConfig:
        if not processes.stopping:
            raise
        click.echo("udf-server: interrupted while it started", err=True)
        sys.exit(INTERRUPTED)
    control = _control(ready, reload)
    click.echo(json.dumps(ready))
    if stop_with_stdin:

        def stop_at_end() -> None:
            sys.stdin.read()
            processes.stop()

        threading.Thread(target=stop_at_end, daemon=True).start()
    processes.wait()
    if control is not None:
        control.close()


def serve_edited(config: ServerConfig, *, stop_with_stdin: bool) -> int:
    """Serve plugins while they are edited. Returns the exit status. Raises InvalidConfig."""
    return Generations(config).run(_stop_signals(), stop_with_stdin=stop_with_stdin)


def _control(ready: ReadyLine, reload: Reload) -> ControlServer | None:
    try:
        return ControlServer(int(ready["metrics"].rpartition(":")[2]), reload)
    except (OSError, InvalidConfig) as error:
        log.warning("`udf-server reload` is not possible, but SIGHUP is", extra={"why": str(error)})
        return None


def _read_again(given: Mapping[str, Any]) -> ServerConfig:
    """The settings of the command line, with what files say now."""
    return load_config(given["file"], os.environ, {setting.name: given[setting.name] for setting in settings()})


def _stop_signals() -> list[signal.Signals]:
    """The signals that drain the server: SIGHUP too, of a terminal that is closed, unless it is ignored as by nohup."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM, signal.SIGINT, *([] if ignored else [signal.SIGHUP])]


async def serve_alone(server: Server, stop_with_stdin: bool, *, worker: bool, held: bool) -> None:
    """Serve in this process. A worker says in its ready line what its parent has to know.

    With `held`, standard input says when to listen, and when another process has replaced this one.
    """
    stop, listen, replaced = asyncio.Event(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        listen.set()  # it need not wait any more

    def read() -> None:
        said = os.read(sys.stdin.fileno(), 4096)
        if LISTEN in said:
            listen.set()
        if LEAVE in said:
            replaced.set()
        if LEAVE in said or not said:
            end()

    for number in _stop_signals():
        loop.add_signal_handler(number, end)
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), read)
    await server.prepare()
    if not held:
        await server.listen()
    functions = [function.spec.key for function in server.registry]
    ready = {"target": server.target, "metrics": server.metrics_url, "pid": os.getpid(), "functions": functions}
    if worker:
        ready |= {"version": __version__, "specs": packed_specs(function.spec for function in server.registry)}
    click.echo(json.dumps(ready))
    if held:
        await listen.wait()
        if not stop.is_set():
            await server.listen()
    await stop.wait()
    if stop_with_stdin:
        loop.remove_reader(sys.stdin.fileno())
    await server.stop(replaced=replaced.is_set())
