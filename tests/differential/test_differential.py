"""Tests of the parts of the differential test, and a short run of it."""

import subprocess
import sys

import pytest

from tests.differential.cascades import draw_cascade
from tests.differential.cases import Case, script
from tests.differential.changelogs import draw_changelog
from tests.differential.choices import Choices
from tests.differential.compare import Outcome, difference, normal
from tests.differential.frames import draw_frame
from tests.differential.joined_rows import draw_estimate, draw_lateral_join
from tests.differential.process import draw_process
from tests.differential.queries import draw_query
from tests.differential.shrink import shrink
from tests.differential.streams import draw_stream
from tests.differential.tables import Settings

GENERATORS = [
    draw_query, draw_frame, draw_lateral_join, draw_estimate, draw_cascade, draw_process, draw_changelog, draw_stream,
]  # fmt: skip


@pytest.mark.parametrize("draw", GENERATORS)
def test_a_seed_gives_the_same_cases_and_every_case_is_a_script(draw):
    for number in range(50):
        one, again = draw(Choices(f"7-{number}")), draw(Choices(f"7-{number}"))
        assert script(one, "a case") == script(again, "a case")
        compile(script(one, "a case"), "script.py", "exec")


@pytest.mark.parametrize("draw", GENERATORS)
def test_recorded_choices_give_the_case_again_and_no_choices_the_simplest(draw):
    first = Choices("7-1")
    assert draw(Choices(recorded=draw(first) and first.made)) == draw(Choices("7-1"))
    assert len(draw(Choices(recorded=[])).ours) < 600


def test_a_difference_shrinks_to_what_shows_it():
    settings = Settings("UTC", None, True, False)  # type: ignore[arg-type]

    def draw(choices):
        numbers = choices.several(lambda: choices.below(100), 0, 20)
        return Case(settings, (), repr(numbers), "", set())

    def is_same(case):
        return any(number >= 50 for number in eval(case.ours))

    choices = next(made for seed in range(99) if is_same(draw(made := Choices(str(seed)))))
    assert shrink(draw, choices.made, is_same, seconds=20).ours == "[50]"


def test_values_are_the_same_only_if_sign_and_kind_are():
    assert normal(0.0) != normal(-0.0)
    assert normal(float("nan")) == normal(float("nan"))
    assert normal(1) != normal(1.0)
    assert normal(0.1 + 0.2) == normal(0.3) != normal(0.3 + 1e-11)
    assert normal({"b": 1, "a": None}) == normal({"a": None, "b": 1})


def test_rows_are_compared_in_their_order_only_where_it_is_determined():
    one, other = Outcome(((1,), (2,)), ("int",), ("a",)), Outcome(((2,), (1,)), ("int",), ("a",))
    assert not difference(one, other, ordered=False)
    assert difference(one, other, ordered=True) == "order of rows"
    assert difference(one, Outcome(((1,),), ("int",), ("a",)), ordered=False) == "rows"


def test_an_error_is_the_same_if_its_class_is():
    zero, null = Outcome(error="DIVIDE_BY_ZERO"), Outcome(error="NULL_VALUE")
    assert not difference(zero, zero, ordered=False)
    assert difference(zero, null, ordered=False)
    assert difference(Outcome(()), zero, ordered=False) == "no error: DIVIDE_BY_ZERO"
    refused = Outcome(error="PlanError", planned=True, message="line 1: no")
    assert difference(refused, Outcome(()), ordered=False).startswith("refused")
    assert not difference(refused, Outcome(error="UNRESOLVED_COLUMN", planned=True), ordered=False)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_queries_give_what_spark_gives():
    """A short form of `make differential`."""
    cases = 75
    command = [sys.executable, "-m", "tests.differential", "--seed", f"26-{cases}", "--cases", str(cases)]
    done = subprocess.run(
        [*command, "--shrinking", "20", "--minutes", "8"], capture_output=True, text=True, check=False, timeout=590
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"{cases} cases" in done.stdout
