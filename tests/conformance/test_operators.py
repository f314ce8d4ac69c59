"""Tests of an asynchronous operator, whose function does what the case's script says."""

from types import SimpleNamespace

import pytest

from tests.conformance.cases import Case, FunctionWords, Table
from tests.conformance.judging import judge
from tests.conformance.kinds import operators
from tests.conformance.observation import Observation

WORLD = SimpleNamespace(observation=lambda case, bound: Observation())


def judged(expected, *inputs, behaviour="returns x when the test lets it finish", **config):
    words = FunctionWords("call", "asynchronous function", (("x", "INT"),), "INT", behaviour)
    table = Table("inputs", (("x", "INT"),), tuple(("+I", [x]) for x in inputs))
    case = Case("it", "some.json", "operator test", (words,), (table,), {"expected": expected}, config)
    return judge(case.expectation, operators.observe(case, WORLD, []))


@pytest.mark.parametrize(("result", "status"), [(30, "passed"), (31, "failed")])
def test_each_call_ends_as_a_step_says(result, status):
    steps = [
        {"open": [1, 2]},
        {"complete": {"2": 20}, "open": [1, 3]},
        {"release": 1},
        {"complete": result, "open": []},
    ]
    expected = {"kind": "sequencing", "steps": steps, "results": {"1": 1, "2": 20, "3": 30}}
    assert judged(expected, 1, 2, 3, capacity=2).status == status


def test_the_function_returns_what_its_words_say():
    told = {"kind": "rows", "rows": [[2], [4]]}
    assert judged(told, 1, 2, behaviour="returns 2 * x after a while").status == "passed"
    assert judged(told, 1, 2).status == "failed"
