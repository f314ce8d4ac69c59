"""Fixtures that tests of aggregates on the executor share."""

from collections.abc import Iterator

import pytest

from spark_client.testing import LocalTransport
from tests.spark_client.executor.aggregate.world import ALL
from udf_server.aggregate.declaration import declare_aggregate


@pytest.fixture(scope="module")
def transport() -> Iterator[LocalTransport]:
    """A transport to the small aggregates of `world`."""
    with LocalTransport(*map(declare_aggregate, ALL)) as transport:
        yield transport
