"""The console commands. They report a missing extra in one line instead of a traceback."""

import importlib
import sys

__all__ = ["remote_udf", "udf_server"]


def udf_server() -> None:
    """`udf-server`, of the extra `server`."""
    _run("udf-server", "udf_server.commands.cli", "server")


def remote_udf() -> None:
    """`remote-udf`, of the extra `spark`."""
    _run("remote-udf", "spark_client.shell.cli", "spark")


def _run(command: str, module: str, extra: str) -> None:
    # Imported by name, because this package imports neither end.
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package in {"remote_udf", "udf_server", "spark_client"}:
            raise
        sys.exit(f"{command} needs {package}, which is not installed here: pip install 'remote-udf[{extra}]'")
    main(prog_name=command)
