"""Declaring functions: names, versions, parameters, options, and what is refused at once."""

import functools
from typing import Annotated

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.functions import Execution, NullCall
from udf_server.base.errors import DeclarationError


def test_a_decorated_function_is_still_the_function():
    @udf.scalar
    def double(a: int) -> int:
        return a * 2

    assert double(4) == 8


def test_name_description_and_execution_come_from_the_code():
    @udf.scalar
    async def geocode(address: str, limit: int = 3) -> str:
        """Where an address lies.

        In detail.
        """

    assert geocode.spec.key == "geocode@1"
    assert geocode.spec.description == "Where an address lies.\n\nIn detail."
    assert geocode.spec.execution is Execution.ASYNC_ROWS
    assert geocode.spec.signature == "geocode(address string, limit bigint = ...) -> string"


def test_everything_may_be_given_instead():
    @udf.scalar(
        name="other", version="2.1", description="What.", parameters="a int, b array<string>", returns="date",
        deterministic=False, nulls="skip", timeout="2 s", max_attempts=5,
    )  # fmt: skip
    def f(a, b):
        return None

    spec = f.spec
    assert spec.signature == "other(a int, b array<string>) -> date"
    assert (spec.key, spec.description, spec.deterministic) == ("other@2.1", "What.", False)
    assert (spec.nulls, dict(spec.options)) == (NullCall.SKIP, {"timeout": "2 s", "max-attempts": "5"})


def test_given_types_win_over_annotations():
    @udf.scalar(parameters={"a": pa.int32()}, returns=str)
    def f(a: int, b: float) -> int:
        return a

    assert f.spec.signature == "f(a int, b double) -> string"


def test_a_class_is_named_in_snake_case_and_called_by_eval():
    @udf.scalar
    class GeoCode:
        """A class."""

        def eval(self, a: int) -> int:
            return a + 1

    assert GeoCode.spec.key == "geo_code@1"
    assert GeoCode.spec.description == "A class."
    assert GeoCode(1) == 2


def test_a_variadic_parameter_repeats_the_last():
    @udf.scalar
    def concat(separator: str, *parts: str) -> str:
        return separator.join(parts)

    assert concat.spec.signature == "concat(separator string, *parts string) -> string"


async def test_a_variadic_function_takes_any_number(environment):
    @udf.scalar
    def concat(separator: str, *parts: str) -> str:
        return separator.join(parts)

    assert (await environment.run(concat, ["-"], ["a"], ["b"], ["c"])).to_pylist() == ["a-b-c"]
    assert (await environment.run(concat, ["-"])).to_pylist() == [""]


async def test_parameters_with_defaults_may_be_left_out(environment):
    @udf.scalar
    def f(a: int, b: int = 10) -> int:
        return a + b

    assert (await environment.run(f, [1])).to_pylist() == [11]
    assert (await environment.run(f, [1], [2])).to_pylist() == [3]


def generator(a: int) -> int:
    yield a


async def async_generator(a: int) -> int:
    yield a


class NoEval:
    pass


def two_contexts(a: int, one: udf.CallContext, two: udf.CallContext) -> int:
    return a


REFUSED = [
    (generator, {}, "function generator: is a generator"),
    (async_generator, {}, "function async_generator: is a generator"),
    (NoEval, {}, "function no_eval: class no_eval has no method 'eval'"),
    (two_contexts, {}, "function two_contexts: 'one' and 'two' are both declared as the call context"),
    (lambda a: a, {"parameters": "a int", "returns": "int"}, "'<lambda>@1' is not a function name"),
    (lambda a: a, {"name": "f"}, "function f, parameter 'a': has no type"),
    (lambda a: a, {"name": "f", "parameters": "a int"}, "function f, result: has no type"),
    (lambda a: a, {"name": "f", "parameters": "b int", "returns": "int"}, "function f, parameter 'a': has no type"),
    (lambda a: a, {"name": "f", "parameters": "a int, b int", "returns": "int"}, "function f: 'parameters' names b"),
    (lambda a: a, {"name": "f", "parameters": "a", "returns": "int"}, "function f, parameters"),
    (lambda a: a, {"name": "f", "parameters": "a nonsense", "returns": "int"}, "function f, parameters"),
    (lambda a: a, {"name": "f", "parameters": "a int", "returns": "nonsense"}, "function f, result"),
    (lambda a: a, {"name": "f", "parameters": "a int", "returns": int | str}, "function f, result.*is a union"),
    (lambda a: a, {"name": "f", "parameters": "a int", "returns": pa.null()}, "function f, result.*return a value"),
    (lambda *, a: a, {"name": "f", "parameters": "a int", "returns": "int"}, "function f, parameter 'a'.*by position"),
    (lambda **a: a, {"name": "f", "parameters": "a int", "returns": "int"}, "function f, parameter 'a'.*by position"),
    (lambda: 1, {"name": "f", "returns": "int", "vectorized": True}, "function f: a vectorized function without arg"),
    (lambda: 1, {"name": "f", "returns": "int", "version": "two"}, "'f@two' is not a function name"),
    (lambda: 1, {"name": "f", "returns": "int", "version": ""}, "'f@' is not a function name"),
    (lambda: 1, {"name": "f", "returns": "int", "version": 2}, "function f: version 2 is not text"),
    (
        lambda: 1,
        {"name": "f", "returns": "int", "cache_ttl": "1 h", "cache_key": 3},
        "function f: cache_key 3 is neither text nor a function of the arguments",
    ),
    (lambda: 1, {"name": "a b", "returns": "int"}, "'a b@1' is not a function name"),
    (lambda: 1, {"name": "f", "returns": "int", "nulls": "maybe"}, "function f: 'maybe' is not a valid NullCall"),
    (lambda: 1, {"name": "f", "returns": "int", "time_out": "1 s"}, "function f: unknown option 'time_out'.*'timeout'"),
    (lambda: 1, {"name": "f", "returns": "int", "timeout": "soon"}, "function f: option 'timeout'"),
    (lambda: 1, {"name": "f", "returns": "int", "on_error": "null"}, "function f: unknown option 'on_error'"),
    (lambda: 1, {"name": "f", "returns": "int", "retry_strategy": "none", "max_attempts": 2}, "contradicts"),
]


@pytest.mark.parametrize(("code", "arguments", "why"), REFUSED)
def test_a_wrong_declaration_is_refused(code, arguments, why):
    with pytest.raises(DeclarationError, match=why) as raised:
        udf.scalar(**arguments)(code)
    assert str(raised.value).count("function f: ") <= 1


def test_an_annotation_that_cannot_be_evaluated_is_refused():
    with pytest.raises(DeclarationError, match=r"function f: an annotation cannot be evaluated.*Nowhere"):

        @udf.scalar
        def f(a: "Nowhere") -> int:  # noqa: F821 - that is what it is about
            return 1


async def test_a_partial_function_may_be_declared(environment):
    def add(a, b):
        return a + b

    plus_two = udf.scalar(name="plus_two", parameters="b int", returns="int")(functools.partial(add, 2))
    assert (await environment.run(plus_two, [1])).to_pylist() == [3]


def test_only_process_table_functions_take_tables():
    with pytest.raises(DeclarationError, match=r"parameter 'r': Only scalar arguments .* SET_SEMANTIC_TABLE"):

        @udf.scalar
        def f(r: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE]) -> int:
            return 1
