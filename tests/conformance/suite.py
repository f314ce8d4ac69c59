"""The sample as tests: the required outcome of every case, and that its judge detects every alteration."""

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import Case
from tests.conformance.environment import Environment
from tests.conformance.messages import shared_words
from tests.conformance.reading import load_folder
from tests.conformance.runner import KINDS, run_case
from tests.conformance.verdict import Status

__all__ = ["FILES", "FOLDER", "assert_holds", "cases_of"]

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "conformance"
FILES = load_folder(FOLDER) if FOLDER.is_dir() else []
ENOUGH = 0.6
"""Share of the significant words of a gist that a message to be read must have."""


def cases_of(*kinds: Any) -> list[Any]:
    """The cases of the sample that these kinds claim, as parameters of a test."""
    return [
        pytest.param(case, id=f"{file.name}:{case.id}")
        for file in FILES
        for case in file.cases
        if next((kind for kind in KINDS if kind.claims(case)), None) in kinds
    ]


def assert_holds(case: Case, environment: Environment) -> None:
    """Runs the case. Unchecked fields must have a declared reason; texts that a person must compare must be similar."""
    entry = run_case(case, environment, mutate=True)
    if entry.status == Status.NOT_APPLICABLE:
        pytest.skip(entry.reason)
    if entry.status == Status.REFUSED:
        assert entry.wording is not None
        assert shared_words(entry.wording[0], entry.wording[1]) >= ENOUGH, entry.reason
        return
    assert entry.status in (Status.PASSED, Status.PARTLY), entry.reason
    assert [name for name, why in entry.unchecked.items() if not why] == []
    assert entry.unnoticed == []
