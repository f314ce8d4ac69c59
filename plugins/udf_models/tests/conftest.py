"""Fixtures that the tests of the plugin share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import udf_models
from udf_models.testing import ScriptedService
from udf_server.declaring.functions import Function


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with ScriptedService() as service:
        yield service


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Function]]:
    """`configured(url, settings)` writes a file of one model, and returns its functions by name."""

    def configure(url: str, settings: str = "", name: str = "small") -> dict[str, Function]:
        file = tmp_path / "models.toml"
        file.write_text(f'[models.{name}]\nurl = "{url}"\nmodel = "small-2026"\n{settings}')
        monkeypatch.setenv("UDF_MODELS_FILE", str(file))
        return {function.spec.name: function for function in udf_models.udf_functions()}

    return configure
