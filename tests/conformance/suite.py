"""The sample as tests: the required outcome of a case, and that its judge detects every alteration."""

import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.cases import Case
from tests.conformance.environment import Environment
from tests.conformance.messages import shared_words
from tests.conformance.reading import load_folder
from tests.conformance.runner import run_case
from tests.conformance.verdict import Status

__all__ = ["FILES", "FOLDER", "assert_holds", "chosen_cases"]

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "conformance"
FILES = load_folder(FOLDER) if FOLDER.is_dir() else []
ENOUGH = 0.6
"""Share of the significant words of a gist that a message to be read must have."""


def chosen_cases() -> list[Any]:
    """A quarter of the sample, which their names determine, as parameters of a test; `make conformance` runs all."""
    named = {f"{file.name}:{case.id}": case for file in FILES for case in file.cases}
    return [pytest.param(case, id=name) for name, case in named.items() if zlib.crc32(name.encode()) % 4 == 0]


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
