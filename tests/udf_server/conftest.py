"""What the tests of the server share."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.udf_server.secured import Pki
from udf_server.testing import FunctionEnvironment


@pytest_asyncio.fixture
async def environment() -> AsyncIterator[FunctionEnvironment]:
    """Runs functions without a server; closed at the end of the test."""
    async with FunctionEnvironment() as environment:
        yield environment


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    """An authority with certificates in files."""
    return Pki(tmp_path)


@pytest.fixture
def access(tmp_path: Path) -> Callable[[str], str]:
    """Writes the access file."""

    def write(text: str) -> str:
        path = tmp_path / "access.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def token_file(tmp_path: Path) -> Callable[[str], str]:
    """Writes the file of a client's token."""

    def write(token: str) -> str:
        path = tmp_path / "token"
        path.write_text(token + "\n")
        return str(path)

    return write
