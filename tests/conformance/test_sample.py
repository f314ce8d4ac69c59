"""Cases of the shared folder hold; skipped where there is no such folder."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.environment import Environment
from tests.conformance.runner import prepared
from tests.conformance.suite import FILES, FOLDER, assert_holds, chosen_cases

pytestmark = [pytest.mark.long, pytest.mark.skipif(not FILES, reason=f"no conformance cases at {FOLDER}")]


@pytest.fixture(scope="module")
def environment(spark: Any) -> Iterator[Environment]:
    # The module has its own settings, views and functions, which other tests must not see.
    with prepared(spark.newSession(), FOLDER) as environment:
        yield environment


def test_every_case_can_be_read():
    assert [broken for file in FILES for broken in file.broken] == []


@pytest.mark.parametrize("case", chosen_cases())
def test_the_case_holds(case, environment):
    assert_holds(case, environment)
