"""A server with one model of a scripted service."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.server import ServerProcess, server_process

__all__ = ["model_server"]


@contextlib.contextmanager
def model_server(
    url: str, settings: Sequence[str] = (), parameters: str = "", more: str = ""
) -> Iterator[ServerProcess]:
    """A server with the model `small` of the service. `more` are lines of its table, and other tables."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "models.toml"
        file.write_text(f'[models.small]\nurl = "{url}"\nmodel = "scripted"\nparameters = {{ {parameters} }}\n{more}')
        os.environ["UDF_MODELS_FILE"] = str(file)
        try:
            with server_process(Path("udf_models"), settings=settings) as server:
                yield server
        finally:
            os.environ.pop("UDF_MODELS_FILE", None)
