"""The console commands. They report a missing extra in one line instead of a traceback."""

import importlib
import os
import signal
import sys

__all__ = ["INTERRUPTED", "end_when_interrupted", "remote_udf", "udf_server"]

INTERRUPTED = 130
"""The exit status of shells for a command that SIGINT has ended."""


def udf_server() -> None:
    """`udf-server`, of the extra `server`."""
    _run("udf-server", "udf_server.commands.cli", "server")


def remote_udf() -> None:
    """`remote-udf`, of the extra `spark`."""
    _run("remote-udf", "spark_client.shell.cli", "spark")


def end_when_interrupted(command: str) -> None:
    """Have SIGINT end the process at once, with one sentence, until it gets another handler."""

    def end(number: int, frame: object) -> None:
        os.write(2, f"{command}: interrupted while it started\n".encode())
        os._exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


def _run(command: str, module: str, extra: str) -> None:
    end_when_interrupted(command)
    # Imported by name, because this package imports neither end.
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package in {"remote_udf", "udf_server", "spark_client"}:
            raise
        sys.exit(f"{command} needs {package}, which is not installed here: pip install 'remote-udf[{extra}]'")
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main(prog_name=command)
