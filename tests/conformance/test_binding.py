"""Functions of a user's file: by name and arguments, by BINDINGS, and declarations that are refused."""

from functools import partial
from types import SimpleNamespace

import pytest

from tests.conformance.binding import FileBinder, FunctionMissing
from tests.conformance.cases import Case, FunctionWords
from tests.conformance.environment import Environment
from tests.conformance.flink_tables import process_sql
from tests.conformance.runner import run_case

FUNCTIONS = """
from typing import Annotated
import udf_server as udf

@udf.scalar
def func(i: int) -> int:
    return i + 1

@udf.scalar(name="func", version="2")
def func_of_two(i: int, j: int) -> int:
    return i + j

class Echo(udf.ProcessTableFunction):
    returns = "out string"
    def eval(self, ctx, r: Annotated[udf.Row, udf.ArgumentTrait.ROW_SEMANTIC_TABLE]):
        yield ("x",)

class NoType(udf.ProcessTableFunction):
    returns = "out string"
    def eval(self, ctx, state: object):
        yield ("x",)

BINDINGS = {
    "called": {"f": "Echo"},
    "special": {"func": "func_of_two"},
    "both": {"f": [func, func_of_two]},
    "other.json": {"late": lambda: udf.scalar(name="late")(lambda: 1)},
    "with help": {"plus": "func_of_two"},
}
"""


@pytest.fixture
def bind_all(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return partial(FileBinder(path, SimpleNamespace()).bind, known=[])


@pytest.fixture
def bind(bind_all):

    def bound(
        name, *arguments, case="any", file="some.json", raw=None, query="SELECT 1", kind="scalar", expectation=None
    ):
        words = FunctionWords(name, kind, tuple((each, "INT") for each in arguments), "INT", "", raw=raw or {})
        (found,) = bind_all(Case(case, file, query, (words,), (), expectation or {}))
        return found

    return bound


def test_the_number_of_arguments_tells_functions_of_one_name_apart(bind):
    assert bind("func", "i").key == "func@1"
    assert bind("func", "i", "j").key == "func@2"
    with pytest.raises(FunctionMissing, match="does not take 3 arguments"):
        bind("func", "i", "j", "k")


def test_the_kind_tells_functions_of_one_name_apart(bind):
    with pytest.raises(FunctionMissing, match="has no function 'func' of kind aggregate"):
        bind("func", "i", kind="bundled_aggregate")


def test_the_calls_of_the_query_say_how_many_arguments_there_are(bind):
    assert bind("func", "several", query="SELECT func(a, b) FROM t").key == "func@2"


def test_a_call_that_is_refused_for_its_arguments_needs_no_function_for_them(bind):
    query = "SELECT func(a, b, c) FROM t"
    with pytest.raises(FunctionMissing, match="does not take 3 arguments"):
        bind("func", "i", query=query)
    assert bind("func", "i", query=query, expectation={"expected_error": "no match for func(a, b, c)"}).key == "func@1"


def test_a_process_table_function_may_be_bound_under_the_name_that_the_query_has(bind):
    raw = {"state": [], "timers": "none"}
    assert bind("Some Words", case="called", query="SELECT * FROM f(r => TABLE t)", raw=raw).name == "echo"


def test_other_functions_of_a_process_case_are_bound_where_the_file_has_them(bind_all):
    raw = {"state": [], "timers": "none"}
    words = FunctionWords("Echo", "", (), "", "", raw=raw)
    case = Case("with help", "some.json", "SELECT plus(1), other(2) FROM f(r => TABLE t)", (words,), ())
    assert [(each.words.name, each.name) for each in bind_all(case)] == [("Echo", "echo"), ("plus", "func")]
    assert process_sql(case, bind_all(case))[0] == ["SELECT `func`(1), other(2) FROM `echo`(r => TABLE t)"]


def test_a_declaration_that_is_refused_is_the_outcome_of_any_case(bind_all):
    case = Case(
        "any", "other.json", "SELECT late() FROM t", (FunctionWords("late", "scalar", (), "INT", ""),), (),
        {"expected_error": "no type hint for the result"},
    )  # fmt: skip
    environment = SimpleNamespace(bind=bind_all, observation=partial(Environment.observation, None))
    entry = run_case(case, environment)
    assert entry.status in ("passed", "refused, wording to be read"), entry.reason


def test_bindings_may_have_several_functions_for_a_name(bind):
    assert [bind("f", *names, case="both").key for names in (["i"], ["i", "j"])] == ["func@1", "func@2"]


def test_a_name_that_python_does_not_allow_is_bound_by_its_letters(bind):
    assert bind("Func of (two)", "i", "j").key == "func@2"
    assert bind("E*cho", raw={"state": [], "timers": "none"}).name == "echo"


def test_a_name_is_a_whole_name(bind):
    with pytest.raises(FunctionMissing, match=r"no function 'fun' in functions\.py"):
        bind("fun", "i")


def test_bindings_come_before_names(bind):
    assert bind("func", "i", case="special").key == "func@2"
    refused = bind("late", file="other.json")
    assert refused.refused is not None


def test_a_process_table_function_is_bound_by_the_name_of_its_class(bind):
    assert bind("Echo", raw={"state": [], "timers": "none"}).origin == "Echo of functions.py"


def test_a_declaration_that_is_refused_is_bound_too(bind):
    found = bind("NoType", raw={"state": [], "timers": "none"})
    assert "Could not extract a data type" in str(found.refused)


def test_bindings_must_be_a_table(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text("BINDINGS = {'case': 'func'}")
    with pytest.raises(ValueError, match="BINDINGS must be"):
        FileBinder(path, SimpleNamespace())
