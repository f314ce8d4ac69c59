"""Reports of the outcomes of cases: a line per case, sums, JSON and a page."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.conformance.verdict import Status, Verdict

__all__ = ["Entry", "line", "score", "summary", "write_json"]


@dataclass
class Entry:
    """One case. `bound` maps names to bound functions; `unnoticed` names alterations that were not detected."""

    file: str
    id: str
    status: str = ""
    reason: str = ""
    bound: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    """Fields that were not checked, with the declared reason or ""."""
    wording: tuple[str, str, str] | None = None
    notes: list[str] = field(default_factory=list)
    compared: int = 0
    seconds: float = 0.0
    mutations: int = 0
    unnoticed: list[str] = field(default_factory=list)

    def take(self, verdict: Verdict, seconds: float, unchecked: dict[str, str]) -> None:
        """Fills it from a verdict."""
        self.status, self.reason = verdict.status.value, " ".join(verdict.reason.split())
        self.wording, self.notes, self.compared = verdict.wording, list(dict.fromkeys(verdict.notes)), verdict.compared
        self.seconds, self.unchecked = round(seconds, 1), unchecked

    @property
    def bad(self) -> bool:
        return Status(self.status).bad


def line(entry: Entry) -> str:
    """`passed   ptf.json some-id (1.2 s)`, followed by the reason if there is one."""
    functions = ", ".join(f"{name}: {origin}" for name, origin in entry.bound.items())
    told = f": {entry.reason}" if entry.reason and entry.status != Status.PASSED else ""
    missed = f" UNNOTICED {entry.unnoticed}" if entry.unnoticed else ""
    what = f"{entry.status:<16} {entry.file} {entry.id} ({entry.seconds:.1f} s)"
    return f"{what} [{functions or 'no function'}]{told}{missed}"


def summary(entries: Sequence[Entry]) -> list[str]:
    """A line per file with its numbers, and how many functions were made from words."""
    lines = []
    for name in dict.fromkeys(entry.file for entry in entries):
        counts = Counter(entry.status for entry in entries if entry.file == name)
        lines.append(f"{name}: " + ", ".join(f"{counts[each]} {each}" for each in Status if counts[each]))
    words = sum(origin == "made from words" for entry in entries for origin in entry.bound.values())
    if words:
        lines.append(f"{words} functions were made from words, which is done for the shared sample only")
    return lines


def score(entries: Sequence[Entry]) -> tuple[int, int]:
    """Returns the number of detected alterations of expectations, and of all of them."""
    made = sum(entry.mutations for entry in entries)
    return made - sum(len(entry.unnoticed) for entry in entries), made


def write_json(entries: Sequence[Entry], path: Path) -> None:
    """All entries, and their numbers by status."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = Counter(entry.status for entry in entries)
    noticed, made = score(entries)
    document: dict[str, Any] = {
        "counts": {each.value: counts[each.value] for each in Status},
        "mutations": {"made": made, "noticed": noticed},
        "cases": [asdict(entry) for entry in entries],
    }
    path.write_text(json.dumps(document, indent=2, default=str) + "\n")
