"""What a run of many seeds found, for people and as build/sim.json."""

import dataclasses
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.world import Result

__all__ = ["Report", "shown"]

TRACE_LINES = 60


@dataclass
class Report:
    """Sums over the seeds of a run."""

    seeds: int = 0
    """Worlds: seeds of both modes."""
    failures: int = 0
    failed: list[dict[str, object]] = field(default_factory=list)
    events: int = 0
    rows: int = 0
    replays: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    mutants: int = 0
    mutants_found: int = 0

    def count(self, result: Result) -> None:
        """Add one world."""
        scenario = result.scenario
        failed = {"seed": scenario.seed, "mode": scenario.mode, "problem": result.problem}
        self.add(
            Report(
                1, int(bool(result.problem)), [failed] if result.problem else [], result.events, result.rows,
                result.replays, result.virtual_seconds,
            )
        )  # fmt: skip

    def add(self, other: "Report") -> None:
        for each in dataclasses.fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    def __str__(self) -> str:
        return (
            f"{self.seeds} worlds, {self.failures} failures, {self.virtual_seconds:.0f} virtual seconds, "
            f"{self.rows} rows, {self.replays} replays, {self.cpu_seconds:.0f} s of CPU time; "
            f"{self.mutants_found} of {self.mutants} planted bugs found"
        )


def shown(result: Result, smallest: Result) -> str:
    """A failure: what is wrong, how to repeat it, the smallest schedule and the end of its trace."""
    scenario, small = result.scenario, smallest.scenario
    lines = [
        f"seed {scenario.seed}, mode {scenario.mode}, commit {_commit()}: {result.problem}",
        f"repeat it with: make sim SEED={scenario.seed} MODE={scenario.mode}",
        f"smallest schedule: {small.servers} servers {' '.join(small.lasting)}",
        *(f"  {task}"[:300] for task in small.tasks),
        *(f"  {fault}" for fault in small.faults),
        f"its problem: {smallest.problem}",
        *smallest.trace[-TRACE_LINES:],
    ]
    return "\n".join(lines)


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
