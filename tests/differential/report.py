"""The result of a run: cases by construct, differences, and rejected queries that Spark supports."""

import collections
from pathlib import Path

from tests.differential.cases import Case, script
from tests.differential.compare import Outcome
from tests.differential.refusals import accepted

__all__ = ["Report"]

VAGUE = ("rows", "order of rows", "types of columns", "names of columns")
"""Kinds of difference that may have several causes."""
SHOWN = 6
"""The number of differences of such a kind that are shrunk."""


class Report:
    """Counts cases, and writes a script for each kind of difference."""

    def __init__(self, directory: Path) -> None:
        self.cases = 0
        self.equal: collections.Counter[str] = collections.Counter()
        self.constructs: collections.Counter[str] = collections.Counter()
        self.refused: collections.Counter[str] = collections.Counter()
        self.more: collections.Counter[str] = collections.Counter()
        self.differences: collections.Counter[str] = collections.Counter()
        self.scripts: list[Path] = []
        self._directory = directory

    def count(self, case: Case, kind: str, ours: Outcome, sparks: Outcome) -> bool:
        """Count a case; return whether its difference is to be shrunk and shown."""
        self.cases += 1
        self.constructs.update(case.tags)
        if not kind:
            self.equal["errors of the same class" if ours.rows is None else "rows"] += 1
            return False
        if sparks.rows is None and sparks.planned:
            # It is harmless if more queries are supported than in Spark.
            self.more[f"{sparks.error}"] += 1
            return False
        if ours.planned and (reason := accepted(ours.message)):
            self.refused[reason] += 1
            return False
        self.differences[kind] += 1
        return self.differences[kind] <= (SHOWN if kind in VAGUE else 1)

    def write(self, name: str, case: Case, kind: str, ours: Outcome, sparks: Outcome) -> None:
        """Print a difference and write its script."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{name}.py"
        path.write_text(script(case, f"Case {name}: {kind}"))
        self.scripts.append(path)
        print(
            f"\nDIFFERENT {path}\n{path.read_text()}\nremote-udf: {ours.shown}\nSpark:      {sparks.shown}\n",
            flush=True,
        )

    def print(self, seed: str, seconds: float) -> None:
        """Print the counts."""
        print(f"\n{self.cases} cases in {seconds:.0f} s, seed {seed}")
        for title, counts in (
            ("the same", self.equal), ("with", self.constructs), ("refused by remote-udf, as documented", self.refused),
            ("planned by remote-udf, refused by Spark", self.more), ("DIFFERENT", self.differences),
        ):  # fmt: skip
            print(f"{title}:")
            for what, number in counts.most_common():
                print(f"{number:8,}  {what}")
        for path in self.scripts:
            print(path)
