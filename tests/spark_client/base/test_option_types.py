"""The types of call options agree with the tables of options."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pyarrow as pa
import pytest

from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.option_tables import Option
from remote_udf.option_types import (
    AggregateCallOptions,
    CallOptions,
    EmitCallOptions,
    ProcessCallOptions,
    ScalarCallOptions,
)
from spark_client import PlanError, RemoteAggregate, RemoteFunction, RemoteSession
from spark_client.base.config import ClientConfig
from spark_client.base.options import KNOWN_OPTIONS
from spark_client.functions.directory import Functions
from spark_client.windows.emitting import EMIT_OPTIONS


def of_kind(*kinds: FunctionKind) -> dict[str, Option]:
    return {option.attribute: option for kind in kinds for table in KNOWN_OPTIONS[kind] for option in table.values()}


KINDS = [
    (ScalarCallOptions, of_kind(FunctionKind.SCALAR)),
    (AggregateCallOptions, of_kind(FunctionKind.AGGREGATE)),
    (ProcessCallOptions, of_kind(FunctionKind.PROCESS)),
    (CallOptions, of_kind(FunctionKind.SCALAR, FunctionKind.AGGREGATE)),
    (EmitCallOptions, {option.attribute: option for option in EMIT_OPTIONS.values()}),
]


@pytest.mark.parametrize(("typed", "known"), KINDS)
def test_a_type_has_the_options_of_its_kind(typed: type, known: Mapping[str, Option]):
    assert sorted(get_type_hints(typed)) == sorted(known)


def choices(hint: Any) -> Iterator[str]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    elif isinstance(hint, type) and issubclass(hint, StrEnum):
        yield from hint
    for part in get_args(hint) if get_origin(hint) is not Literal else ():
        yield from choices(part)


@pytest.mark.parametrize(("typed", "known"), KINDS)
def test_every_choice_of_a_type_can_be_parsed(typed: type, known: Mapping[str, Option]):
    for name, hint in get_type_hints(typed).items():
        for choice in choices(hint):
            known[name].parse(choice)


def test_a_choice_has_all_values_of_its_option():
    for name, hint in get_type_hints(ScalarCallOptions).items():
        listed = {value for value in choices(hint) if type(value) is str}
        assert listed == {value for value in choices(hint) if type(value) is not str}, name


@pytest.mark.parametrize(("kind", "expected"), [("scalar", RemoteFunction), ("aggregate", RemoteAggregate)])
def test_a_function_is_of_the_kind_that_was_asked_for(kind: str, expected: type):
    specs = [FunctionSpec(each, "1", FunctionKind(each), (), pa.int64(), 1) for each in ("scalar", "aggregate")]
    session = RemoteSession(None, ClientConfig("nowhere:1"), Functions(specs))
    other = "scalar" if kind == "aggregate" else "aggregate"
    assert isinstance(session.function(kind, kind=kind, timeout="2 s"), expected)
    with pytest.raises(PlanError, match=f"function {other}@1 is of kind {other}, not {kind}"):
        session.function(other, kind=kind)
