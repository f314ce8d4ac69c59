"""Functions of a user's file: by name and arguments, by BINDINGS, and declarations that are refused."""

from types import SimpleNamespace

import pytest

from tests.conformance.binding import FileBinder, FunctionMissing
from tests.conformance.cases import Case, FunctionWords

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
}
"""


@pytest.fixture
def bind(tmp_path):
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    binder = FileBinder(path, SimpleNamespace())

    def bound(name, *arguments, case="any", file="some.json", raw=None, query="SELECT 1", kind="scalar"):
        words = FunctionWords(name, kind, tuple((each, "INT") for each in arguments), "INT", "", raw=raw or {})
        (found,) = binder.bind(Case(case, file, query, (words,), ()), [])
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


def test_a_process_table_function_may_be_bound_under_the_name_that_the_query_has(bind):
    raw = {"state": [], "timers": "none"}
    assert bind("Some Words", case="called", query="SELECT * FROM f(r => TABLE t)", raw=raw).name == "echo"


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
