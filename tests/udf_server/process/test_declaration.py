"""Declarations of process table functions: what is refused, and the columns of their results."""

import asyncio
import datetime
import functools
import typing
from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import InvalidCall
from remote_udf.process_planning import output_fields, plan_process_call
from remote_udf.result_columns import column_named_by, columns_of
from udf_server import ArgumentTrait, DeclarationError, ListView
from udf_server.process.declaration import declare_process
from udf_server.testing import ProcessTableHarness, table

KEYED = Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]
ROWWISE = Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE]
names = st.sampled_from([None, "a", "b", "c"])
times = st.integers(0, 8)


def declared(**members):
    return declare_process(type("Wrong", (udf.ProcessTableFunction,), {"returns": "a int", **members}))


def test_a_declaration_that_is_wrong_names_function_and_parameter():
    def untyped(self, ctx, rows):
        yield

    def optional_table(self, rows: KEYED = None):
        yield

    def state_last(self, rows: KEYED, items: ListView[int]):
        yield

    def many(self, *rows: KEYED):
        yield

    def reserved(self, uid: KEYED):
        yield

    for code, message in [
        (untyped, r"function wrong, parameter 'rows': Could not extract a data type"),
        (optional_table, r"function wrong, parameter 'rows': Table arguments must not be optional"),
        (state_last, r"function wrong, parameter 'items': State entries must precede arguments"),
        (many, r"function wrong, parameter 'rows': .*non-overloaded, non-vararg"),
        (reserved, r"function wrong.*uid"),
    ]:
        with pytest.raises(DeclarationError, match=message):
            declared(eval=code)

    def no_time(self, rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.ORDERED_BY_TIME]):
        yield

    with pytest.raises(DeclarationError, match="Trait ORDERED_BY_TIME requires REQUIRE_ON_TIME"):
        declared(eval=no_time)
    with pytest.raises(DeclarationError, match=r"function wrong: .* 'terminate', which is never called.*in on_timer"):
        declared(eval=lambda self: iter(()), terminate=lambda self: iter(()))


def test_an_overloaded_eval_is_refused():
    class Several(udf.ProcessTableFunction):
        returns = "a int"

        @typing.overload
        def eval(self, i: int): ...
        @typing.overload
        def eval(self, i: str): ...
        def eval(self, i: object):
            yield (1,)

    class Dispatched(udf.ProcessTableFunction):
        returns = "a int"

        @functools.singledispatchmethod
        def eval(self, i: int):
            yield (1,)

    for kind in (Several, Dispatched):
        with pytest.raises(DeclarationError, match=r"function \w+: .*non-overloaded.*eval is overloaded"):
            declare_process(kind)


def test_a_value_of_another_type_is_an_error_that_names_the_column():
    class Texts(udf.ProcessTableFunction):
        returns = "a int"

        def eval(self, rows: KEYED) -> Iterator[tuple]:
            yield ("text",)

    harness = ProcessTableHarness(Texts, {"rows": table("k int", partition_by="k")})
    with pytest.raises(Exception, match="column 'a'"):
        harness.row("rows", (1,))


def test_a_kind_that_was_not_declared_is_refused():
    class Deletes(udf.ProcessTableFunction):
        returns = "a int"

        def eval(self, rows: KEYED) -> Iterator[udf.Row]:
            yield udf.Row(1, kind="-D")

    harness = ProcessTableHarness(Deletes, {"rows": table("k int", partition_by="k")})
    with pytest.raises(Exception, match=r"Invalid row kind received: DELETE. Expected produced changelog mode"):
        harness.row("rows", (1,))


def test_timers_need_keys():
    class Ticking(udf.ProcessTableFunction):
        returns = "a int"

        def eval(self, ctx: udf.ProcessContext, rows: ROWWISE) -> Iterator[tuple]:
            ctx.register_on_time(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
            yield (1,)

    with pytest.raises(ValueError, match="Timers are not supported in the current PTF declaration"):
        ProcessTableHarness(Ticking, {"rows": table("k int")}).row("rows", (1,))


class Tagged(udf.ProcessTableFunction):
    """The table with a column whose name is an argument."""

    returns = (column_named_by("name", pa.int32(), default="tag", only_if="tagged"), columns_of("rows"))

    async def eval(
        self,
        ctx: udf.ProcessContext,
        rows: KEYED,
        name: Annotated[list | None, "array<string>"] = None,
        tagged: bool = True,
    ):
        await asyncio.sleep(0)
        values = rows[1:]
        yield (7, *values) if tagged else tuple(values)


@pytest.mark.parametrize(
    ("arguments", "columns", "row"),
    [
        ({}, ["k", "tag", "v"], (1, 7, "x")),
        ({"name": ["mine"]}, ["k", "mine", "v"], (1, 7, "x")),
        ({"tagged": False}, ["k", "v"], (1, "x")),
    ],
)
def test_columns_of_the_result_may_depend_on_the_call(arguments, columns, row):
    harness = ProcessTableHarness(Tagged, {"rows": table("k int, v string", partition_by="k")}, **arguments)
    harness.row("rows", (1, "x"))
    assert harness.columns.names == columns
    assert harness.take() == [row]


def test_both_ends_find_the_same_columns():
    spec = declare_process(Tagged).spec
    copied = type(spec).from_proto(spec.to_proto())
    call = plan_process_call(copied, {"rows": table("k int, v string", partition_by="k")}, {"name": ["mine"]})
    assert [field.name for field in output_fields(copied, call)] == ["k", "mine", "v"]
    with pytest.raises(InvalidCall, match="exactly one column name, not none"):
        plan_process_call(copied, {"rows": table("k int", partition_by="k")}, {"name": []})
