"""The types of call options agree with the tables of options."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from remote_udf.functions import FunctionKind
from remote_udf.option_tables import Option
from remote_udf.option_types import (
    AggregateCallOptions,
    CallOptions,
    EmitCallOptions,
    ProcessCallOptions,
    ScalarCallOptions,
    ScalarDefaults,
    Switch,
)
from remote_udf.options import HOSTED_OPTIONS, SCALAR_OPTIONS
from spark_client.base.options import KNOWN_OPTIONS
from spark_client.windows.emitting import EMIT_OPTIONS


def of_kind(*kinds: FunctionKind) -> dict[str, Option]:
    return {option.attribute: option for kind in kinds for table in KNOWN_OPTIONS[kind] for option in table.values()}


KINDS = [
    (ScalarDefaults, {option.attribute: option for option in (*SCALAR_OPTIONS.values(), *HOSTED_OPTIONS.values())}),
    (ScalarCallOptions, of_kind(FunctionKind.SCALAR)),
    (AggregateCallOptions, of_kind(FunctionKind.AGGREGATE)),
    (ProcessCallOptions, of_kind(FunctionKind.PROCESS)),
    (CallOptions, of_kind(FunctionKind.SCALAR, FunctionKind.AGGREGATE)),
    (EmitCallOptions, {option.attribute: option for option in EMIT_OPTIONS.values()}),
]


@pytest.mark.parametrize(("typed", "known"), KINDS)
def test_a_type_has_the_options_of_its_kind(typed: type, known: Mapping[str, Option]):
    # A function may declare a cache_key that is a function, so that option is a parameter of `udf_server.scalar`.
    parameters = {"cache_key"} if typed is ScalarDefaults else set()
    assert sorted(get_type_hints(typed)) == sorted(known.keys() - parameters)


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
        members = {value for value in choices(hint) if type(value) is not str}
        # A switch is a bool, or its text.
        assert listed == ({"true", "false"} if hint == Switch | None else members), name
