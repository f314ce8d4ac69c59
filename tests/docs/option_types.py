"""Writes the types of `remote_udf.option_types` from the tables of options, between cog's marks."""

from collections.abc import Iterable, Mapping

from remote_udf.functions import FunctionKind
from remote_udf.option_tables import Option
from remote_udf.option_values import ValueReader
from remote_udf.options import AGGREGATE_OPTIONS, HOSTED_OPTIONS, SCALAR_OPTIONS
from spark_client.base.options import KNOWN_OPTIONS
from spark_client.windows.emitting import EMIT_OPTIONS

SCALAR, AGGREGATE = KNOWN_OPTIONS[FunctionKind.SCALAR], KNOWN_OPTIONS[FunctionKind.AGGREGATE]
DECLARED = {name: option for name, option in SCALAR_OPTIONS.items() if name != "cache-key"}
TYPES: Mapping[str, tuple[str, str, Iterable[Mapping[str, Option]]]] = {
    "_RetriedOptions": (
        "TypedDict", "Options of calls of all functions.",
        [{name: option for name, option in SCALAR_OPTIONS.items() if name in AGGREGATE_OPTIONS}],
    ),
    "_RowOptions": ("_RetriedOptions", "Options of scalar functions, in a declaration and in a call.", [DECLARED]),
    "ScalarDefaults": (
        "_RowOptions", "Options in the declaration of a scalar function, without `cache_key`, which is a parameter.",
        [DECLARED, HOSTED_OPTIONS],
    ),
    "ScalarCallOptions": ("_RowOptions", "Options of calls of scalar functions.", SCALAR),
    "AggregateCallOptions": ("_RetriedOptions", "Options of calls of aggregate functions.", AGGREGATE),
    "ProcessCallOptions": (
        "_RetriedOptions", "Options of calls of process table functions.", KNOWN_OPTIONS[FunctionKind.PROCESS],
    ),
    "CallOptions": (
        "ScalarCallOptions", "Options of calls of functions that may be scalar or aggregate.", (*SCALAR, *AGGREGATE),
    ),
    "EmitCallOptions": ("TypedDict", "Options of `RemoteGrouping.emit`.", [EMIT_OPTIONS]),
}  # fmt: skip
"""The base, the documentation and the options of each type, with those of the base."""


def types() -> str:
    """The code of all types, each with two empty lines after it."""
    return "".join(f"{_type(name)}\n\n" for name in TYPES)


def _type(name: str) -> str:
    base, doc, _ = TYPES[name]
    inherited = _options(base) if base in TYPES else {}
    lines = [
        f"    {attribute}: {_accepted(option)} | None\n"
        for attribute, option in _options(name).items() if attribute not in inherited
    ]  # fmt: skip
    return f'class {name}({base}, total=False):\n    """{doc}"""\n\n{"".join(lines)}'


def _options(name: str) -> dict[str, Option]:
    return {option.attribute: option for table in TYPES[name][2] for option in table.values()}


def _accepted(option: Option) -> str:
    assert isinstance(option.parse, ValueReader)
    return option.parse.accepts
