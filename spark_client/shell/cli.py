"""`remote-udf`: sql."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession

from remote_udf.errors import RemoteUdfError
from remote_udf.version import __version__
from spark_client.base.security import Security
from spark_client.connecting import connect
from spark_client.shell.loop import FORMATS, HELP, Shell
from spark_client.shell.tables import add_table

__all__ = ["main"]

PROMPT, MORE = "sql> ", "...> "
HISTORY = "~/.remote_udf_history"
SECURITY = {
    "tls": "Encrypt, and check the server's certificate.",
    "ca_file": "PEM file of the authority of the server's certificate.",
    "certificate_file": "PEM file of your certificate.",
    "key_file": "PEM file of its private key.",
    "server_name": "Name in the server's certificate, if it is not the target's.",
    "token_file": "File with a bearer token.",
    "token_variable": "Environment variable with a bearer token.",
    "allow_plaintext": "Send the token without TLS.",
}
"""What the fields of `Security` are, as options of a command."""


def _security(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each field of `Security`."""
    for field in reversed(dataclasses.fields(Security)):
        flag = "--" + field.name.replace("_", "-")
        kind: dict[str, Any] = {"is_flag": True} if field.default is False else {"metavar": "VALUE"}
        command = click.option(flag, field.name, help=SECURITY[field.name], **kind)(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="remote-udf")
def main() -> None:
    """Calls remote functions from Spark."""


@main.command()
@click.argument("tables", nargs=-1, metavar="[NAME=PATH]...")
@click.option(
    "-e", "--execute", multiple=True, metavar="SQL", help="Run this statement and exit. May be given several times."
)
@click.option("-f", "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Run a file and exit.")
@click.option("--target", help="Server to use, as host:port or unix:/path; by default one is started.")
@_security
@click.option("--plugin", "plugins", multiple=True, help="Module or .py file for the server that is started.")
@click.option(
    "--spark", "spark_url", default="local[*]", show_default=True, help="Spark master, or sc://host for Connect."
)
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Setting of the Spark session.")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="table", show_default=True)
@click.option(
    "--rows", default=50, show_default=True, type=click.IntRange(min=1), help="Maximum number of rows to show."
)
@click.option("--timing", is_flag=True, help="Print how long each statement took.")
def sql(
    tables: Sequence[str], execute: Sequence[str], file: Path | None, target: str | None, plugins: Sequence[str],
    spark_url: str, conf: Sequence[str], form: str, rows: int, timing: bool, **security: Any,
) -> None:  # fmt: skip
    """A shell for Spark SQL with remote functions, over tables from files.

    remote-udf sql flights=flights.csv airports.parquet

    Exits with 1 if a statement of -e, -f or a pipe fails; what follows it is not run then.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with _session(spark_url, conf) as spark:
        try:
            remote = connect(spark, target, plugins=plugins, security=Security(**security))
            for told in tables:
                add_table(spark, told)
        except (RemoteUdfError, ValueError) as error:
            raise click.ClickException(str(error)) from error
        shell = Shell(remote, click.echo, _complain, form=form, rows=rows, timing=timing)
        if execute or file:
            texts = [*execute, *([file.read_text(encoding="utf-8")] if file else ())]
            ok = all(shell.run_all(text.split("\n")) for text in texts)
        elif sys.stdin.isatty():
            _converse(shell)
            ok = True
        else:
            ok = shell.run_all(line.rstrip("\n") for line in sys.stdin)
    if not ok:
        raise SystemExit(1)


@contextlib.contextmanager
def _session(url: str, conf: Sequence[str]) -> Iterator[SparkSession]:
    builder = SparkSession.builder.remote(url) if url.startswith("sc://") else SparkSession.builder.master(url)
    settings = {}
    if not url.startswith("sc://"):
        settings = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "FATAL", "spark.ui.enabled": "false"}
    for each in conf:
        key, separator, value = each.partition("=")
        if not separator:
            raise click.UsageError(f"--conf is KEY=VALUE, not {each!r}")
        settings[key] = value
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.appName("remote-udf sql").getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def _converse(shell: Shell) -> None:
    """Prompt until the input or the shell ends; Ctrl-C discards an incomplete statement."""
    with _history():
        click.echo(HELP)
        while not shell.ended:
            try:
                shell.feed(input(MORE if shell.in_statement else PROMPT))
            except KeyboardInterrupt:
                click.echo()
                shell.forget()
            except EOFError:
                click.echo()
                return


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Load the lines of earlier sessions and save those of this one, if Python has readline."""
    try:
        import readline  # noqa: PLC0415 - not on every platform
    except ImportError:
        yield
        return
    with contextlib.suppress(OSError, RuntimeError):
        readline.read_history_file(Path(HISTORY).expanduser())
    try:
        yield
    finally:
        # A user without an entry and without HOME, as in containers, has no folder for them.
        with contextlib.suppress(OSError, RuntimeError):
            readline.set_history_length(1000)
            readline.write_history_file(Path(HISTORY).expanduser())


def _complain(message: str) -> None:
    click.echo(f"Error: {message}", err=True)
