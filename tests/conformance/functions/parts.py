"""The aggregates of `combine` cases, which describe only their values: each aggregate returns them row by row."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import udf_server as udf
from tests.conformance.cases import Case

__all__ = ["part_functions", "part_name"]


def part_name(case: str, index: int) -> str:
    """Returns the name of a part of a case."""
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', case)}_{index}"


def part_functions(cases: Iterable[Case]) -> list[udf.AggregateFunction]:
    """Returns the functions of all cases."""
    return [_made(case.id, part) for case in cases for part in case.expected.get("parts") or ()]


def _made(case: str, part: Mapping[str, Any]) -> udf.AggregateFunction:
    told = [part.get("starting_value"), *(part.get("updated_values_after_each_row") or ())]
    # A part whose value is not included has none to tell.
    values = [each[0] if each else None for each in told]
    type_ = "string" if any(isinstance(value, str) for value in values) else "bigint"
    made: Any = (_Bundled if part.get("bundled") else _Classic)()
    made.name, made.values, made.returns = part_name(case, part["index"]), values, type_
    made.description = f"Part {part['index']} of {case}."
    return made


class _Classic(udf.AggregateFunction):
    """Its accumulator is the number of rows, and its values are a list."""

    values: list[Any]

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, v: int) -> int:
        return accumulator + 1

    def get_value(self, accumulator: int) -> Any:
        return self.values[min(accumulator, len(self.values) - 1)]


class _Bundled(udf.BundledAggregateFunction):
    parameters = "v bigint"
    accumulator = "bigint"
    values: list[Any]

    def bundled_accumulate_retract(self, bundle: list[udf.BundledKeySegment]) -> list[udf.BundledKeySegmentApplied]:
        applied = []
        for segment in bundle:
            before = segment.accumulators[0] if segment.accumulators else 0
            after = before + len(segment.rows)
            updated = self.values[before + 1 : after + 1]
            applied.append(udf.BundledKeySegmentApplied(after, self.values[before], self.values[after], updated))
        return applied
