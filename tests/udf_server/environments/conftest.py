"""A wheelhouse, as packages of groups are installed from without an index."""

import os

import pytest

from tests.udf_server.environments.wheels import write_needed, write_wheel

CODE = """
import greeting
import udf_server as udf


@udf.scalar
def greet{major}(x: int) -> str:
    return greeting.TEXT
"""


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """Two versions of a library, and two plugins of which each needs another one; what a server needs."""
    pytest.importorskip("uv")
    folder = tmp_path_factory.mktemp("wheels")
    write_needed(folder)
    for version in ("1.0", "2.0"):
        write_wheel(folder, "greeting", version, f"TEXT = 'hello {version}'\n")
        code, needed = CODE.format(major=version[0]), (f"greeting=={version}", "remote-udf[server]")
        write_wheel(folder, f"plugin{version[0]}", "1", code, needed)
    return folder


@pytest.fixture
def no_index(monkeypatch):
    """Nothing that this machine configures for pip or uv is used."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
