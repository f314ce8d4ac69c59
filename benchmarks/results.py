"""Results: a flat map from name to number, as JSON and as a table."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.timing import medians, spread

__all__ = ["Results"]


@dataclass
class Results:
    """The results of a suite. Names never change their meaning; a new meaning gets a new name."""

    suite: str
    numbers: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, number: float, note: str) -> None:
        """Adds one number. `note` says in a few words what it is, and its unit."""
        self.numbers[name] = float(f"{number:.4g}")
        self.notes[name] = note
        print(f"  {name:44} {self.numbers[name]:>12,.4g}  {note}", flush=True)

    def add_all(self, numbers: Mapping[str, float], note: str) -> None:
        """Adds several numbers with one meaning."""
        for name, number in numbers.items():
            self.add(name, number, note)

    def medians(self, what: str, found: Mapping[str, list[float]]) -> dict[str, float]:
        """Returns the median of each side of a comparison, and adds the spread of their values as `<what>_spread`."""
        self.add(f"{what}_spread", spread(found), "largest less smallest over the median, of the side that varied most")
        return medians(found)

    def write(self, directory: Path) -> Path:
        """Writes `<suite>.json` atomically."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.suite}.json"
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(self.numbers, indent=2) + "\n")
        draft.replace(path)
        return path
