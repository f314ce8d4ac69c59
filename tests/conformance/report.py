"""Outcomes of cases, printed and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

__all__ = ["FileReport", "Outcome", "Result", "failures", "summary", "write_json"]


class Outcome(StrEnum):
    """What became of a case."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"
    FUNCTION_MISSING = "function_missing"


@dataclass(frozen=True)
class Result:
    """`reason` says why a case did not pass, or what a pass leaves unsaid."""

    outcome: Outcome
    reason: str = ""

    @classmethod
    def passed(cls, reason: str = "") -> "Result":
        return cls(Outcome.PASSED, reason)

    @classmethod
    def failed(cls, reason: str) -> "Result":
        return cls(Outcome.FAILED, reason)

    @classmethod
    def not_applicable(cls, reason: str) -> "Result":
        return cls(Outcome.NOT_APPLICABLE, reason)


@dataclass
class FileReport:
    """The outcomes of a file's cases, by id, in the file's order."""

    name: str
    results: list[tuple[str, Result]] = field(default_factory=list)

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome is outcome for _, result in self.results)

    def to_json(self) -> dict[str, Any]:
        counts: dict[str, Any] = {outcome.value: self.count(outcome) for outcome in Outcome}
        details = [
            {"id": id_, "outcome": result.outcome.value, "reason": result.reason} for id_, result in self.results
        ]
        return {**counts, "details": details}


def failures(report: FileReport) -> list[str]:
    """A line per case that failed or lacks a function."""
    bad = (Outcome.FAILED, Outcome.FUNCTION_MISSING)
    return [
        f"{result.outcome.value.upper().replace('_', ' ')} {report.name} {id_}: {' '.join(result.reason.split())}"
        for id_, result in report.results
        if result.outcome in bad
    ]


def summary(report: FileReport) -> str:
    """`file: 40 passed / 1 failed / 5 not applicable (why) / 0 function missing`."""
    reasons: dict[str, int] = {}
    for _, result in report.results:
        if result.outcome is Outcome.NOT_APPLICABLE:
            reasons[result.reason] = reasons.get(result.reason, 0) + 1
    why = "; ".join(f"{count} x {reason}" if count > 1 else reason for reason, count in reasons.items())
    return (
        f"{report.name}: {report.count(Outcome.PASSED)} passed / {report.count(Outcome.FAILED)} failed / "
        f"{report.count(Outcome.NOT_APPLICABLE)} not applicable{f' ({why})' if why else ''} / "
        f"{report.count(Outcome.FUNCTION_MISSING)} function missing"
    )


def write_json(reports: Sequence[FileReport], path: Path) -> None:
    """The reports by file name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({report.name: report.to_json() for report in reports}, indent=2) + "\n")
