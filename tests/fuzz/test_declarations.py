"""Random declarations of plugins: each is accepted, or rejected by a DeclarationError that names it."""

import datetime
import decimal
import inspect
from dataclasses import make_dataclass
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

import udf_server as udf
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.base.errors import DeclarationError
from udf_server.process.declaration import declare_process

PLAIN = st.sampled_from([
    int, str, float, bytes, bool, decimal.Decimal, datetime.date, datetime.datetime, datetime.timedelta, np.int32,
    "int", "decimal(10,2)", "array<int", "nothing", pa.int8(), pa.dense_union([]), object, type, list, dict, tuple,
    Any, 3, -1.5, lambda: 1, Annotated[list, pa.list_(pa.string())], Annotated[pa.StructArray, 5], udf.CallContext,
    udf.Row, ..., pa.Int64Array, inspect.Parameter.empty, None,
])  # fmt: skip
TYPES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        inner.map(lambda each: _try(lambda: list[each])),
        st.tuples(inner, inner).map(lambda pair: _try(lambda: dict[pair[0], pair[1]])),
        inner.map(lambda each: _try(lambda: each | None)),
        st.lists(inner, max_size=3).map(lambda some: _try(lambda: make_dataclass("D", _fields(some)))),
    ),
    max_leaves=4,
)
KINDS = st.sampled_from(list(type(inspect.Parameter.KEYWORD_ONLY)))
NAMES = st.sampled_from(["a", "b", "c", "context", "self", "ctx", "r"])
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=6), st.lists(st.integers(), max_size=2), PLAIN,
    st.sampled_from(["skip", "call", "2 s", "1", "a int, b string", {"a": "int"}, {"a": object}]),
)  # fmt: skip
KEYWORDS = st.dictionaries(
    st.sampled_from([
        "name", "version", "description", "parameters", "returns", "vectorized", "batched", "deterministic", "nulls",
        "timeout", "max_attempts", "retry_strategy", "nonsense",
    ]), ODD, max_size=4,
)  # fmt: skip
MEMBERS = st.dictionaries(
    st.sampled_from(["name", "version", "returns", "parameters", "accumulator", "nulls", "size", "eval", "on_timer"]),
    ODD, max_size=4,
)  # fmt: skip


def _try(make: Any) -> Any:
    """What Python itself rejects is no annotation."""
    try:
        return make()
    except TypeError:
        return int


def _fields(types: list[Any]) -> list[tuple[str, Any]]:
    return [(f"f{index}", type_) for index, type_ in enumerate(types)]


@st.composite
def functions(draw: st.DrawFn) -> Any:
    """A function with random parameters."""
    chosen = draw(st.dictionaries(NAMES, st.tuples(TYPES, KINDS, st.booleans()), max_size=4))
    parameters = []
    for name, (_, kind, has_default) in sorted(chosen.items(), key=lambda item: item[1][1]):
        variadic = kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        default = inspect.Parameter.empty if variadic or not has_default else 1
        parameters.append(inspect.Parameter(name, kind, default=default))
    try:
        signature = inspect.Signature(parameters)
    except ValueError:
        signature = inspect.Signature()

    def odd(*_: Any, **__: Any) -> Any:
        return None

    odd.__signature__ = signature  # type: ignore[attr-defined]
    odd.__annotations__ = {name: chosen[name][0] for name in signature.parameters}
    if draw(st.booleans()):
        odd.__annotations__["return"] = draw(TYPES)
    return odd


def refused(declare: Any, **keywords: Any) -> None:
    """Declare it; a rejection must name it."""
    try:
        declare(**keywords)
    except DeclarationError as error:
        assert str(error).startswith(("function ", "class ")), str(error)


@settings(max_examples=400)
@given(functions(), KEYWORDS)
@example(lambda a: a, {"version": 1})
def test_any_scalar_function_is_declared_or_refused_by_name(function, keywords):
    refused(lambda **given_: udf.scalar(**given_)(function), **keywords)


@settings(max_examples=200)
@given(
    st.sampled_from([udf.AggregateFunction, udf.VectorizedAggregateFunction, udf.BundledAggregateFunction]),
    MEMBERS,
    functions(),
)
def test_any_aggregate_function_is_declared_or_refused_by_name(base, members, accumulate):
    refused(lambda: declare_aggregate(type("Odd", (base,), {"accumulate": accumulate, **members})()))


@settings(max_examples=200)
@given(MEMBERS, functions(), functions())
def test_any_process_table_function_is_declared_or_refused_by_name(members, evaluate, on_timer):
    refused(
        lambda: declare_process(
            type("Odd", (udf.ProcessTableFunction,), {"eval": evaluate, "on_timer": on_timer, **members})
        )
    )
