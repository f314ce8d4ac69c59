"""Functions made from the words of cases."""

import pyarrow as pa
import pytest

from tests.conformance.cases import FunctionWords
from tests.conformance.functions.behaviour import read_behaviour
from tests.conformance.functions.building import build, overloads
from tests.conformance.functions.expressions import NotUnderstood, Scope
from tests.conformance.functions.failures import read_failure
from udf_server.testing import FunctionEnvironment


@pytest.mark.parametrize(
    ("words", "arguments", "value"),
    [
        ("returns 'val ' followed by the decimal text of i", {"i": 3}, "val 3"),
        ("returns 'all ' + s + ' ' + i*i + ' ' + 2*l; completes immediately", {"i": 2, "l": 3, "s": "x"}, "all x 4 6"),
        ("returns i + 10; completes about 10 ms later on another thread", {"i": 1}, 11),
        ("adds 10 to i", {"i": 1}, 11),
        ("the sum of a and b", {"a": 1, "b": 2}, 3),
        ("returns a - b / 2", {"a": 1, "b": -3}, 2),
        ("identity", {"p": [1]}, [1]),
        ("f0 = a + 1, f1 = text of a*a", {"a": 3}, {"f0": 4, "f1": "9"}),
        ("returns an array with the elements p and p * 2", {"p": 2}, [2, 4]),
        ("returns null", {"p": 2}, None),
        ("returns i + 1", {"i": None}, None),
        ("keeps an invocation counter; on success returns the counter, i.e. how many there were", {"i": 1}, 7),
        ("INT overload returns 'int ' + p; STRING overload returns 'string ' + p", {"p": "1"}, "string 1"),
    ],
)  # fmt: skip
def test_a_behaviour_in_words_gives_a_value(words, arguments, value):
    behaviour = read_behaviour(words, tuple(arguments), "INT")
    assert behaviour.value(Scope(arguments, invocation=7)) == value


@pytest.mark.parametrize(
    ("words", "arguments", "rows"),
    [
        ("emits 'blah ' + i and then 'foo ' + i", {"i": 1}, ["blah 1", "foo 1"]),
        ("completes with the two rows 'a' + i and 'b'; without argument 'c' and 'd'", {}, ["c", "d"]),
        ("one row: the invocation count as text", {"i": 1}, ["7"]),
        ("emits rows (i, 'x and y') and (i + 1, 'z')", {"i": 1}, [(1, "x and y"), (2, "z")]),
        ("splits s at '#', one row per part, each with p in front when given", {"s": "a#b", "p": "$"}, ["$a", "$b"]),
        ("splits s at '#', one row per part; no rows when s has no '#'", {"s": "ab"}, []),
    ],
)
def test_a_table_function_in_words_gives_rows(words, arguments, rows):
    behaviour = read_behaviour(words, tuple(arguments) or ("i",), "TABLE<STRING>")
    assert behaviour.value(Scope(arguments, invocation=7)) == rows


def test_words_that_make_no_sense_are_not_guessed_at():
    for words in ("computes the phase of the moon", "returns the best of i", "returns i +", ""):
        with pytest.raises(NotUnderstood):
            read_behaviour(words, ("i",), "INT")
    with pytest.raises(NotUnderstood):
        read_failure("fails when it feels like it")


def test_delays_are_read():
    assert read_behaviour("returns i, 50 ms later", ("i",), "INT").delay(Scope({"i": 1})) == 0.05
    by_input = read_behaviour("returns i after 30, 20 ms for i = 1, 2", ("i",), "INT")
    assert [by_input.delay(Scope({"i": i})) for i in (1, 2, 3)] == [0.03, 0.02, 0.0]


@pytest.mark.parametrize(
    ("words", "struck"),
    [
        ("", []),
        ("completes exceptionally with a runtime error 'Error n' on the first 2 invocations", [1, 2]),
        ("throws on the first invocation", [1]),
        ("fails twice, then succeeds", [1, 2]),
        ("always fails", [1, 2, 3, 4]),
        ("every other call completes the future and throws afterwards", []),
    ],
)
def test_a_failure_in_words_strikes_some_invocations(words, struck):
    failure = read_failure(words)
    assert [n for n in range(1, 5) if failure.strikes(Scope({"i": 1}, n))] == struck


def test_a_failure_may_be_of_one_input_and_carry_its_number():
    failure = read_failure("first call for 'x' throws without completing")
    assert failure.strikes(Scope({"s": "x"}, 1)) and not failure.strikes(Scope({"s": "y"}, 1))
    assert read_failure("always completes with runtime error 'Error n'").text(3) == "Error 3"
    assert read_failure("never completes").hangs


def words(behaviour, *, name="func", failure="", arguments=(("i", "INT"),), returns="INT", kind="async_scalar"):
    return FunctionWords(name, kind, arguments, returns, behaviour, failure)


def test_a_function_in_words_has_the_types_in_words():
    built = build(words("returns f", arguments=(("f", "FLOAT"),), returns="DOUBLE"), "3")
    assert built.key == "func@3"
    assert built.function.spec.signature == "func(f float) -> double"
    assert built.local(2) == 2.0
    union = build(words("returns i", arguments=(("i", "INT or STRING"), ("j", "INT (optional)"))), "1")
    assert union.function.spec.signature == "func(i int | string, j int = ...) -> int"


def test_an_overload_with_another_number_of_arguments_is_a_function_of_its_own():
    told = "returns i + l; a one-argument overload func(s STRING) returns STRING s + '!'"
    both = words(told, arguments=(("i", "INT"), ("l", "INT")))
    first, second = overloads(both)
    assert (first.behaviour, second.arguments, second.returns) == ("returns i + l", (("s", "STRING"),), "STRING")
    assert build(second, "1").local("a") == "a!"


async def test_invocations_of_one_planned_call_are_counted():
    counting = build(words("returns the number of invocations so far"), "1").function
    async with FunctionEnvironment() as environment:
        result = await environment.run(counting, pa.array([1, 1], pa.int32()))
    assert sorted(result.to_pylist()) == [1, 2]
