"""Declarations of process table functions: what is refused, and the columns of their results."""

import asyncio
import dataclasses
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
from remote_udf.table_arguments import ProcessSignature
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


class Either(udf.ProcessTableFunction):
    """Names the semantics of its table, which depend on the call."""

    returns = (udf.columns_of("rows"),)

    def eval(
        self, ctx: udf.ProcessContext,
        rows: Annotated[
            udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE, ArgumentTrait.SET_SEMANTIC_TABLE.when(has_partition_by=True),
            ArgumentTrait.REQUIRE_ON_TIME.unless(timed=False),
        ],
        timed: bool = True,
    ) -> Iterator[udf.Row]:  # fmt: skip
        key = ctx.table_semantics_for("rows").partition_by_columns
        yield udf.Row(*(value for at, value in enumerate(rows) if at not in key))


def test_traits_that_depend_on_the_call_are_those_of_the_call():
    spec = declare_process(Either).spec
    same = ProcessSignature.from_proto(spec.process.to_proto())
    assert (same.tables[0].traits, set(same.tables[0].conditional)) == (
        spec.process.tables[0].traits, set(spec.process.tables[0].conditional),
    )  # fmt: skip
    keyed, plain = table("k string, ts timestamp", partition_by="k"), table("k string, ts timestamp")
    for given, arguments, traits in [
        (keyed, {}, {"SET_SEMANTIC_TABLE", "REQUIRE_ON_TIME"}),
        (plain, {"timed": True}, {"ROW_SEMANTIC_TABLE", "REQUIRE_ON_TIME"}),
        (keyed, {"timed": False}, {"SET_SEMANTIC_TABLE"}),
    ]:
        called = spec.process.in_call({"rows": bool(given.partition_by)}, arguments)
        assert called.tables[0].traits == traits
        # A call with other traits is a call of the same function.
        assert dataclasses.replace(spec, process=called).fingerprint == spec.fingerprint
    with pytest.raises(InvalidCall, match="'rows' requires a time attribute"):
        plan_process_call(spec, {"rows": plain}, {})
    call = plan_process_call(spec, {"rows": keyed}, {"timed": False})
    assert [field.name for field in output_fields(spec, call)] == ["k", "ts"]


def test_a_conditional_trait_that_cannot_be_is_refused():
    def unknown(self, rows: Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE,
                                      ArgumentTrait.SET_SEMANTIC_TABLE.when(keyed=True)]):  # fmt: skip
        yield

    def together(self, rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE.unless(has_partition_by=False),
                                       ArgumentTrait.ROW_SEMANTIC_TABLE.when(has_partition_by=False)]):  # fmt: skip
        yield

    assert declared(eval=together).spec.process.tables[0].traits == frozenset()

    def twice(self, rows: Annotated[udf.Row, ArgumentTrait.ROW_SEMANTIC_TABLE,
                                    ArgumentTrait.OPTIONAL_PARTITION_BY.when(has_partition_by=True)]):  # fmt: skip
        yield

    def notified(self, rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE,
                                       ArgumentTrait.NOTIFY_STATEFUL_SETS]):  # fmt: skip
        yield

    def stateless(self, rows: KEYED, rules: Annotated[udf.Row, ArgumentTrait.BROADCAST_SEMANTIC_TABLE,
                                                      ArgumentTrait.NOTIFY_STATEFUL_SETS]):  # fmt: skip
        yield

    for code, message in [
        (unknown, "'rows': a trait depends on 'keyed', which is not a scalar argument; there are has_partition_by"),
        (twice, "'rows': Trait OPTIONAL_PARTITION_BY requires SET_SEMANTIC_TABLE"),
        (notified, "'rows': Trait NOTIFY_STATEFUL_SETS requires BROADCAST_SEMANTIC_TABLE"),
        (stateless, "'rules': Trait NOTIFY_STATEFUL_SETS requires a state entry of a key"),
    ]:
        with pytest.raises(DeclarationError, match=message):
            declared(eval=code)


class Resettable(udf.ProcessTableFunction):
    """Emits the first event of each key; a row of `resets` makes it forget the keys that it names, or all."""

    returns = "what string, limit bigint"

    def eval(
        self, ctx: udf.ProcessContext, limit: Annotated[udf.ValueView[int], udf.StateHint(broadcast=True)],
        seen: udf.ValueView[int], events: KEYED,
        resets: Annotated[udf.Row, ArgumentTrait.BROADCAST_SEMANTIC_TABLE, ArgumentTrait.NOTIFY_STATEFUL_SETS],
    ) -> Iterator[tuple[str, int | None]]:  # fmt: skip
        if resets is not None and seen is None:
            limit.value = resets.limit
        elif resets is not None and resets.name in (None, ctx.key[0]):
            ctx.clear_all_state()
            yield f"reset after {seen.value}", limit.value
        elif events is not None:
            seen.value = (seen.value or 0) + 1
            if seen.value == 1:
                yield "first", limit.value


def test_a_broadcast_row_notifies_the_keys_that_have_state():
    harness = ProcessTableHarness(
        Resettable,
        {"events": table("k string, ts timestamp", partition_by="k"),
         "resets": "name string, limit bigint, ts timestamp"}, on_time="ts",
    )  # fmt: skip
    at = [datetime.datetime(2026, 1, 1, 0, minute, tzinfo=datetime.UTC) for minute in range(9)]
    harness.row("resets", (None, 7, at[0]))
    assert harness.take() == []  # no key has state
    for minute, key in enumerate("aba", 1):
        harness.row("events", (key, at[minute]))
    assert harness.take() == [("a", "first", 7, at[1]), ("b", "first", 7, at[2])]
    # The output has the key and the time of the broadcast row; broadcast state was changed before.
    harness.row("resets", ("a", 8, at[4]))
    assert harness.take() == [("a", "reset after 2", 8, at[4])]
    assert harness.state_keys("seen") == [("b",)]
    harness.row("events", ("a", at[5]))
    assert harness.take() == [("a", "first", 8, at[5])]


def test_the_harness_reads_and_clears_broadcast_state_which_has_no_key():
    tables = {"events": table("k string", partition_by="k"), "resets": "name string, limit bigint"}
    harness = ProcessTableHarness(Resettable, tables)
    assert (harness.state_keys("limit"), harness.state("limit").value) == ([], None)
    harness.row("resets", (None, 7))
    harness.row("events", ("a",))
    assert (harness.state_keys("limit"), harness.state("limit").value) == ([()], 7)
    harness.clear_state("limit")
    assert (harness.state_keys("limit"), harness.state("limit").value) == ([], None)
    assert harness.state_keys("seen") == [("a",)]


def test_broadcast_state_cannot_be_changed_while_keys_are_notified():
    class Wrong(Resettable):
        def eval(
            self, ctx: udf.ProcessContext, limit: Annotated[udf.ValueView[int], udf.StateHint(broadcast=True)],
            seen: udf.ValueView[int], events: KEYED,
            resets: Annotated[udf.Row, ArgumentTrait.BROADCAST_SEMANTIC_TABLE, ArgumentTrait.NOTIFY_STATEFUL_SETS],
        ) -> Iterator[tuple[str, int | None]]:  # fmt: skip
            if resets is not None:
                limit.value = 1
            else:
                seen.value = 1
            yield from ()

    harness = ProcessTableHarness(Wrong, {"events": table("k string", partition_by="k"), "resets": "name string"})
    harness.row("resets", ("x",))
    harness.row("events", ("a",))
    with pytest.raises(Exception, match=r"Broadcast state entry .limit. is read-only"):
        harness.row("resets", ("x",))
