"""What the tests of the server share."""

from collections.abc import AsyncIterator

import pytest_asyncio

from udf_server.testing import FunctionEnvironment


@pytest_asyncio.fixture
async def environment() -> AsyncIterator[FunctionEnvironment]:
    """Runs functions without a server; closed at the end of the test."""
    async with FunctionEnvironment() as environment:
        yield environment
