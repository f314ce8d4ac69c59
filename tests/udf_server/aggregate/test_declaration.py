"""Valid declarations of aggregate functions, and the errors for invalid ones."""

from dataclasses import dataclass

import pyarrow as pa
import pytest

import udf_server as udf
from tests.udf_server.aggregate_functions import BundledAverage, ClassicAverage, CountAll, VectorizedAverage
from udf_server.aggregate.declaration import declare_aggregate, is_aggregate


def test_types_come_from_annotations_or_attributes():
    for kind in (BundledAverage, ClassicAverage, VectorizedAverage):
        spec = declare_aggregate(kind).spec
        assert spec.signature == f"{spec.name}(v bigint) -> bigint"
        assert spec.accumulator == pa.struct([("sum", pa.int64()), ("count", pa.int64())])


def test_the_name_is_the_class_name_in_snake_case():
    assert declare_aggregate(BundledAverage).spec.key == "bundled_average@1"


def test_what_a_classic_function_supports_is_what_it_defines():
    class Mergeable(CountAll):
        def merge(self, accumulator, others):
            return accumulator + sum(others)

    counts = declare_aggregate(CountAll).spec
    assert (counts.supports_retracting, counts.supports_merging) == (False, False)
    assert declare_aggregate(Mergeable).spec.supports_merging


def test_an_instance_carries_its_own_settings():
    class Power(udf.AggregateFunction):
        def __init__(self, exponent):
            self.name = f"sum_of_powers_{exponent}"
            self.exponent = exponent

        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator, v: int):
            return accumulator + v**self.exponent

        def get_value(self, accumulator) -> int:
            return accumulator

    assert declare_aggregate(Power(3)).spec.name == "sum_of_powers_3"
    with pytest.raises(
        udf.DeclarationError, match="function power: class Power cannot be instantiated without arguments"
    ):
        declare_aggregate(Power)


def test_the_base_classes_themselves_are_no_functions():
    bases = (udf.AggregateFunction, udf.BundledAggregateFunction, udf.VectorizedAggregateFunction)
    assert [is_aggregate(base) for base in bases] == [False] * 3
    assert is_aggregate(ClassicAverage)
    assert is_aggregate(ClassicAverage())


def test_static_methods_may_be_verbs():
    class Longest(udf.AggregateFunction):
        @staticmethod
        def create_accumulator() -> str:
            return ""

        @staticmethod
        def accumulate(accumulator, text: str):
            return max(accumulator, text, key=len)

        @staticmethod
        def get_value(accumulator) -> str:
            return accumulator

    assert declare_aggregate(Longest).spec.signature == "longest(text string) -> string"


class Base(udf.AggregateFunction):
    name = "f"

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator, v: int):
        return accumulator

    def get_value(self, accumulator) -> int:
        return accumulator


class Bundled(udf.BundledAggregateFunction):
    name, parameters, returns, accumulator = "f", "v bigint", "bigint", "bigint"

    def bundled_accumulate_retract(self, bundle):
        return []


class Vectorized(udf.VectorizedAggregateFunction):
    name, parameters, returns, accumulator = "f", "v bigint", "bigint", "bigint"

    def apply_bundle(self, bundle):
        return pa.nulls(0)

    def get_values(self, accumulators):
        return pa.nulls(0)


async def wait(self, *arguments):
    pass


@dataclass
class Unsupported:
    value: complex


WRONG = [
    ("no accumulate", Base, {"accumulate": udf.AggregateFunction.accumulate}, "class F has no method 'accumulate'"),
    ("no get_value", Base, {"get_value": udf.AggregateFunction.get_value}, "class F has no method 'get_value'"),
    ("no merge", Base, {"supports_merging": lambda self: True}, "class F has no method 'merge'"),
    ("no retract", Base, {"supports_retracting": lambda self: True}, "class F has no method 'retract'"),
    ("no bundle", Base, {"supports_bundling": lambda s: True}, "has no method 'bundled_accumulate_retract'"),
    ("no get_values", Vectorized, {"get_values": udf.VectorizedAggregateFunction.get_values}, "no method 'get_values'"),
    (
        "async accumulate",
        Base,
        {"accumulate": wait},
        "'accumulate' is async; only bundled_accumulate_retract may be async",
    ),
    ("async merge", Base, {"merge": wait}, "'merge' is async"),
    ("async apply_bundle", Vectorized, {"apply_bundle": wait}, "'apply_bundle' is async"),
    ("no types of bundles", Bundled, {"parameters": None}, "'parameters' are missing, such as"),
    ("no result", Bundled, {"returns": None}, "result: has no type: give 'returns'"),
    ("no accumulator", Vectorized, {"accumulator": None}, "accumulator: has no type: give 'accumulator'"),
    ("no annotation", Base, {"accumulate": lambda self, a, w: a}, "parameter 'w': has no type: annotate it or give"),
    ("none of the result", Base, {"get_value": lambda self, a: a}, "result: has no type: annotate 'get_value' or give"),
    ("bad DDL", Bundled, {"returns": "bigfloat"}, "result: "),
    ("union accumulator", Base, {"accumulator": int | str}, "accumulator: int | str is not a single type"),
    ("unknown type", Base, {"returns": Unsupported}, "result"),
    ("foreign parameter", Base, {"parameters": {"w": "int"}}, "'parameters' names w, which it does not have"),
    ("keyword", Base, {"accumulate": lambda self, a, *, v: a}, "parameter 'v': arguments are passed by position only"),
    ("variadic first", Bundled, {"parameters": {"*v": "int", "w": "int"}}, "'v': only the last one may be variadic"),
    (
        "no room",
        Base,
        {"accumulate": lambda self: 0},
        "'accumulate' is called with 1 arguments, but its signature is accumulate()",
    ),
    (
        "other arguments",
        Base,
        {"retract": lambda self, a: a},
        "'retract' is called with 2 arguments, but its signature is retract(a)",
    ),
    ("merge of two", Base, {"merge": lambda self, a: a}, "'merge' is called with 2 arguments"),
    ("bundle of two", Bundled, {"bundled_accumulate_retract": lambda s, b, c: b}, "is called with 1 arguments"),
    ("name", Base, {"name": "my-function"}, "'my-function@1' is not a function name"),
    ("version", Base, {"version": 2}, "version 2 is not text; write '2'"),
    ("option", Base, {"options": {"time_out": "1 s"}}, "unknown option 'time_out'"),
    ("nulls", Base, {"nulls": "drop"}, "'drop' is not a valid NullCall"),
]


@pytest.mark.parametrize(("what", "base", "members", "message"), WRONG, ids=[row[0] for row in WRONG])
def test_a_wrong_declaration_says_what_is_wrong_with_which_function(what, base, members, message):
    kind = type("F", (base,), members)
    with pytest.raises(udf.DeclarationError) as raised:
        declare_aggregate(kind)
    assert str(raised.value).startswith(f"function {kind.name}")
    assert str(raised.value).count(f"function {kind.name}") == 1
    assert message in str(raised.value)
