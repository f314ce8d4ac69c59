"""Fused calls: several calls of a row as one function of Spark, whose value is a struct of their values.

To Spark, each call of a function over an iterator of Arrow batches is an operator of its own, with its own hand-over of
the rows between JVM and Python. Fused calls are one operator.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import functions as F

from spark_client.base.calls import ErrorPolicy, ScalarCall
from spark_client.base.identifiers import hidden
from spark_client.base.options import session_options
from spark_client.base.types import spark_type
from spark_client.executor.engine.planned_calls import PlannedCall
from spark_client.executor.scalar.column import FusedPlan, evaluate_fused
from spark_client.functions.scalar import RemoteFunction, plan_call

__all__ = ["CallOfColumns", "FusedFunctions"]

_NUMBERS = itertools.count()
_NAMES_LENGTH = 60


@dataclass(frozen=True)
class CallOfColumns:
    """A call among fused ones. `columns` are its arguments as in PlannedCall."""

    function: RemoteFunction
    columns: tuple[int, ...]


class FusedFunctions:
    """The functions of one session that were registered with Spark for fused calls. Equal calls share a function."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self.templates: dict[str, list[str]] = {}
        """By registered name, the calls that are made, such as "f({0}, g[{1}])" of the first two columns.

        A call among the arguments of another has brackets, because it is listed itself.
        """

    def register(self, calls: Sequence[CallOfColumns], output: Sequence[int], width: int) -> str:
        """Register the calls over `width` columns as a temporary function, and return its name.

        Args:
            calls: The calls, each after those among its arguments.
            output: The positions of the calls whose values the function returns, in the fields `field_of(0)` and so on.
            width: The number of columns.

        """
        planned = [_planned(each.function, len(each.columns)) for each in calls]
        parts = [(_identity(call), each.columns) for call, each in zip(planned, calls, strict=True)]
        key = (tuple(parts), tuple(output))
        if key not in self._names:
            fused = FusedPlan(
                tuple(
                    PlannedCall(call, each.columns, names=tuple(f"a{place}" for place in range(len(each.columns))))
                    for call, each in zip(planned, calls, strict=True)
                ),
                tuple(output),
            )
            self._names[key] = self._register(calls[0].function, fused, width)
        return self._names[key]

    def _register(self, function: RemoteFunction, fused: FusedPlan, width: int) -> str:
        def evaluate(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            return evaluate_fused(fused, batches)

        names = [planned.call.spec.name for planned in fused.calls]
        readable = re.sub(r"\W", "_", "_".join(names))[:_NAMES_LENGTH]
        name = hidden(f"fused_{next(_NUMBERS)}_{readable}")
        # Spark uses the annotations of `evaluate`, which its overloads do not have.
        function.spark.udf.register(name, F.arrow_udf(evaluate, spark_type(fused.type)))  # type: ignore[call-overload]
        shown = [f"{{{column}}}" for column in range(width)]
        self.templates[name] = []
        for planned in fused.calls:
            arguments = ", ".join(shown[column] for column in planned.columns)
            shown.append(f"{planned.call.spec.name}[{arguments}]")
            self.templates[name].append(f"{planned.call.spec.name}({arguments})")
        return name


def _planned(function: RemoteFunction, arguments: int) -> ScalarCall:
    session = session_options(function.spark, function.spec.kind, function.spec.name)
    options = {**function.options, "output_mode": "ordered"}
    return plan_call(function.spec, function.config, arguments, options, session)


def _identity(call: ScalarCall) -> tuple[str, tuple[tuple[str, str], ...], ErrorPolicy]:
    return call.spec.key, tuple(sorted(call.options.items())), call.policy
