"""The simulation in the tests: some seeds of each mode, and that a seed gives the same run everywhere."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.simulation.drawing import drawn
from tests.simulation.functions import drawn_behaviour
from tests.simulation.mutants import MUTANTS, found_at
from tests.simulation.scenario import PROBE, Limits, Scenario
from tests.simulation.shrink import shrunk
from tests.simulation.world import run, worlds
from udf_server.streams.services import AdmissionLimits, StreamLimits

SEEDS = 40
"""Of each mode; `make sim` runs more."""
HASHES = "from tests.simulation.test_simulation import hashes; print(*hashes())"
HERE = f"3.{sys.version_info.minor}"
OTHERS = [version for version in ("3.11", "3.12", "3.13") if version != HERE]
MATRIX = Path(__file__).parents[2] / "build" / "matrix"


def hashes() -> list[str]:
    with worlds():
        results = [run(drawn(seed, mode)) for seed in range(10) for mode in ("safety", "liveness")]
    assert [result.problem for result in results if result.problem] == []
    return [result.hash for result in results]


def hashes_in(python: object, hash_seed: str) -> str:
    """The same in a process of another interpreter, or with other hashes of texts."""
    return subprocess.run(
        [str(python), "-c", HASHES], env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True, text=True,
        stdout=subprocess.PIPE,
    ).stdout.strip()  # fmt: skip


@pytest.mark.parametrize("mode", ["safety", "liveness"])
def test_no_seed_of_a_mode_violates_an_oracle(mode):
    with worlds():
        results = [run(drawn(seed, mode)) for seed in range(1_000, 1_000 + SEEDS)]
    assert {result.scenario.seed: result.problem for result in results if result.problem} == {}
    assert sum(result.replays for result in results) > SEEDS / 2  # there were faults, and rows in flight


def test_every_planted_bug_is_in_a_method_that_there_is():
    assert [each.what for each in MUTANTS if each.method not in vars(each.owner)] == []


def test_streams_with_few_rows_per_message_lose_no_turns_to_workers_without_rows():
    """A caller with two streams of small messages has many workers that find no row when it is their turn."""
    random = Random(0)
    tasks = tuple(
        dataclasses.replace(
            PROBE, rows=tuple(drawn_behaviour(random, 0.0, 0.001, 0.04) for _ in range(200)), timeout=300.0, pause=0.0,
            capacity=20, batch_rows=100, message_rows=message_rows,
        )
        for message_rows in (1, 3, 20)
    )  # fmt: skip
    limits = Limits(AdmissionLimits(), StreamLimits(unanswered_rows=20), calls=2)
    with worlds():
        result = run(Scenario(0, "safety", 1, tasks, (), 0.0, limits=limits, callers=2))
    assert result.problem == ""


@pytest.mark.parametrize(
    "what",
    [
        "the counts of a connection are not reset",
        "admission tickets are not returned",
        "a closed connection stays watched",
        "unordered values are placed in reverse",
    ],
)
def test_a_planted_bug_is_found_within_a_few_seeds(what):
    [mutant] = [each for each in MUTANTS if each.what == what]
    with worlds():
        assert found_at(mutant, most_seeds=10) is not None


def test_a_failure_is_shrunk_and_fails_in_the_same_way():
    [mutant] = [each for each in MUTANTS if each.method == "give_back"]
    with worlds(), mutant.planted():
        result = next(found for seed in range(20) if (found := run(drawn(seed, "safety"))).problem)
        smallest = shrunk(result, most_runs=40)
    assert "admission holds" in smallest.problem
    assert len(smallest.scenario.faults) + len(smallest.scenario.tasks) <= 3
    assert sum(len(task.rows) for task in smallest.scenario.tasks) <= 5


@pytest.mark.long
def test_ten_seeds_have_the_same_trace_in_processes_with_other_hashes():
    assert {hashes_in(sys.executable, hash_seed) for hash_seed in ("1", "2")} == {" ".join(hashes())}


@pytest.mark.slow
@pytest.mark.parametrize("version", OTHERS)
def test_ten_seeds_have_the_same_trace_on_other_pythons(version):
    python = MATRIX / f"python{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"needs build/matrix/python{version}, which `make matrix PYTHONS={version}` creates")
    assert hashes_in(python, "1") == " ".join(hashes())
