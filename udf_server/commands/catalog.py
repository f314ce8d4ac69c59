"""Functions for people: the list, the description of one, and one call of it."""

import inspect
import json
from collections.abc import Iterator, Sequence
from typing import Any

from remote_udf.outcomes import RowError
from remote_udf.segments import AppliedField
from remote_udf.types import spelled
from udf_server.aggregate.declaration import Aggregate
from udf_server.aggregate.segments import BundledKeySegment
from udf_server.base.functions import Function
from udf_server.hosting.registry import Registry
from udf_server.page.texts import argument_columns
from udf_server.testing import FunctionEnvironment

__all__ = ["as_json", "described", "evaluate", "listed"]

LEAST_SIGNATURE = LEAST_DESCRIPTION = 24
"""Characters of signatures and descriptions that are shown on any terminal."""
WIDEST_SIGNATURE = 64
"""Without a width, signatures that are longer move the rest of their own line only."""


def listed(registry: Registry, width: int | None = None) -> str:
    """A line per function: signature, version, plugin, owner if any has one, first line of the description.

    If lines would be longer than `width`, signatures and descriptions are cut. Without a width nothing is.
    """
    rows = [
        [function.spec.signature, function.spec.version, registry.plugins[function.spec.key],
         function.spec.owner, function.spec.description.partition("\n")[0]]
        for function in registry
    ]  # fmt: skip
    rows.insert(0, ["FUNCTION", "VERSION", "PLUGIN", "OWNER", ""])
    if not any(function.spec.owner for function in registry):
        rows = [[*row[:3], row[4]] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    if width is None:
        widths[0] = min(widths[0], WIDEST_SIGNATURE)
        return "\n".join("  ".join((*map(str.ljust, row, widths), row[-1])).rstrip() for row in rows)
    widths[0] = min(widths[0], max(width - sum(widths[1:]) - 2 * len(widths) - LEAST_DESCRIPTION, LEAST_SIGNATURE))
    return "\n".join(_fitted("  ".join((*map(_fitted, row, widths), row[-1])), width).rstrip() for row in rows)


def as_json(registry: Registry) -> Iterator[str]:
    """A line of JSON per function, for programs."""
    for spec in (function.spec for function in registry):
        facts = {
            "name": spec.name, "version": spec.version, "kind": spec.kind, "signature": spec.signature,
            "plugin": registry.plugins[spec.key], "owner": spec.owner, "description": spec.description,
        }  # fmt: skip
        yield json.dumps(facts, ensure_ascii=False)


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 3]}..."


def described(function: Function, plugin: str) -> str:
    """Everything about one function."""
    spec = function.spec
    facts = {
        "version": spec.version,
        "plugin": plugin,
        **({"owner": spec.owner} if spec.owner else {}),
        "defined in": function.origin,
        "execution": spec.execution,
        "deterministic": "yes" if spec.deterministic else "no",
        "nulls": spec.nulls,
        "options": ", ".join(f"{name}={text}" for name, text in spec.options.items()) or "the defaults",
    }
    if spec.accumulator is not None:
        able = {"merging": spec.supports_merging, "retracting": spec.supports_retracting}
        facts["accumulator"] = spelled(spec.accumulator)
        facts["supports"] = ", ".join(name for name, found in able.items() if found) or "neither merging nor retracting"
    lines = [spec.signature, "", *(f"{name + ':':15}{value}" for name, value in facts.items())]
    if spec.description:
        lines += ["", inspect.cleandoc(spec.description)]
    return "\n".join(lines)


async def evaluate(function: Function, arguments: Sequence[str]) -> tuple[Any, RowError | None]:
    """The outcome of one call; of an aggregate function, over one row. Arguments are as in `argument_columns`.

    Raises StreamError ARGUMENT_COUNT or ARGUMENT_TYPE.
    """
    columns = argument_columns(function, arguments)
    async with FunctionEnvironment() as environment:
        if isinstance(function, Aggregate):
            row = tuple(column.to_pylist(maps_as_pydicts="strict")[0] for column in columns)
            segment = BundledKeySegment((), [row])
            applied = await environment.apply(function, [segment], applied=[AppliedField.FINAL_VALUE])
            value = applied.applied[0]
            return value and value.final_value, applied.errors.get(0)
        result = await environment.run(function, *columns, rows=1)
    return result.values.to_pylist(maps_as_pydicts="strict")[0], result.errors.get(0)
