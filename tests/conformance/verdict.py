"""Verdicts: the outcome of a case, and its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Status", "Verdict"]


class Status(StrEnum):
    """The outcome of a case."""

    PASSED = "passed"
    PARTLY = "partly checked"
    VACUOUS = "vacuous"
    REFUSED = "refused, wording to be read"
    NOT_APPLICABLE = "not applicable"
    FAILED = "failed"
    MISSING = "missing function"
    MALFORMED = "malformed"

    @property
    def bad(self) -> bool:
        """Whether it makes the run fail."""
        return self in (Status.FAILED, Status.MISSING, Status.MALFORMED)


@dataclass
class Verdict:
    """`compared` counts rows, values and facts; `unchecked` names the fields that were not read."""

    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compared: int = 0
    wording: tuple[str, str, str] | None = None
    """What the case says, what was said, and what that lacks: for a reader."""
    waived: frozenset[tuple[str, int]] = frozenset()
    decided: Status | None = None
    held: Mapping[str, Any] | None = None
    """The expectation of the outcome with which the rest was compared, if the case allows several."""

    @property
    def status(self) -> Status:
        if self.decided is not None:
            return self.decided
        if self.problems:
            return Status.FAILED
        if self.wording is not None:
            return Status.REFUSED
        if not self.compared:
            return Status.VACUOUS
        return Status.PARTLY if self.unchecked else Status.PASSED

    @property
    def reason(self) -> str:
        """The reason in one line."""
        if self.problems:
            return self.problems[0]
        if self.wording is not None and self.decided is None:
            return f"expected {self.wording[0]!r}; found {self.wording[1]!r}; lacks {self.wording[2]}"
        if self.unchecked and self.decided is None:
            return f"not checked: {', '.join(self.unchecked)}"
        return "; ".join(dict.fromkeys(self.notes))
