"""Every case of the shared folder through real Spark and real servers; skipped where there is no such folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import load_folder
from tests.conformance.environment import Environment
from tests.conformance.report import Outcome
from tests.conformance.runner import KINDS, prepared, run_case

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "conformance"
FILES = load_folder(FOLDER) if FOLDER.is_dir() else []
CASES = [
    pytest.param(case, id=f"{file.name}:{case.id}")
    for file in FILES
    for case in file.cases
    if any(kind.claims(case) for kind in KINDS)
]

pytestmark = pytest.mark.skipif(not CASES, reason=f"no conformance cases at {FOLDER}")


@pytest.fixture(scope="module")
def environment(spark: Any) -> Iterator[Environment]:
    # Its settings, views and functions are no other test's business.
    with prepared(spark.newSession(), FOLDER) as environment:
        yield environment


def test_every_case_can_be_read():
    assert [broken for file in FILES for broken in file.broken] == []


@pytest.mark.parametrize("case", CASES)
def test_the_case_holds(case, environment):
    result = run_case(case, environment)
    if result.outcome is Outcome.NOT_APPLICABLE:
        pytest.skip(result.reason)
    assert result.outcome is Outcome.PASSED, result.reason
