"""Writes the types of `remote_udf.option_types` from the tables of options, between cog's marks."""

from collections.abc import Iterable, Mapping

from remote_udf.functions import FunctionKind
from remote_udf.option_tables import Option
from remote_udf.option_values import ValueReader
from remote_udf.options import HOSTED_OPTIONS, SCALAR_OPTIONS
from spark_client.base.options import KNOWN_OPTIONS
from spark_client.windows.emitting import EMIT_OPTIONS

SCALAR, AGGREGATE = KNOWN_OPTIONS[FunctionKind.SCALAR], KNOWN_OPTIONS[FunctionKind.AGGREGATE]
TYPES: Mapping[str, tuple[str, Iterable[Mapping[str, Option]]]] = {
    "ScalarDefaults": (
        "Options in the declaration of a scalar function, without `cache_key`, which is a parameter.",
        [{name: option for name, option in SCALAR_OPTIONS.items() if name != "cache-key"}, HOSTED_OPTIONS],
    ),
    "ScalarCallOptions": ("Options of calls of scalar functions.", SCALAR),
    "AggregateCallOptions": ("Options of calls of aggregate functions.", AGGREGATE),
    "ProcessCallOptions": ("Options of calls of process table functions.", KNOWN_OPTIONS[FunctionKind.PROCESS]),
    "CallOptions": ("Options of calls of functions that may be scalar or aggregate.", (*SCALAR, *AGGREGATE)),
    "EmitCallOptions": ("Options of `RemoteGrouping.emit`.", [EMIT_OPTIONS]),
}


def types() -> str:
    """The code of all types, each with two empty lines after it."""
    return "".join(f"{_type(name, doc, tables)}\n\n" for name, (doc, tables) in TYPES.items())


def _type(name: str, doc: str, tables: Iterable[Mapping[str, Option]]) -> str:
    options = {option.attribute: option for table in tables for option in table.values()}
    lines = [f"    {attribute}: {_accepted(option)} | None\n" for attribute, option in options.items()]
    return f'class {name}(TypedDict, total=False):\n    """{doc}"""\n\n{"".join(lines)}'


def _accepted(option: Option) -> str:
    assert isinstance(option.parse, ValueReader)
    return option.parse.accepts
