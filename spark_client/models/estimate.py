"""Estimate is what calls for the rows of a frame would cost, as the `cost` of a function's declaration says."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from remote_udf.amounts import AMOUNTS, add_amounts
from remote_udf.functions import FunctionKind, FunctionSpec, NullCall
from remote_udf.options import OutputMode
from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.grouped import grouped
from spark_client.base.statistics import amounts_text
from spark_client.functions.aggregate import AggregateExpression, OverExpression
from spark_client.functions.arguments import column_of
from spark_client.functions.column_calls import ColumnCall, call_of
from spark_client.functions.scalar import plan_call, spark_function

__all__ = ["NO_COSTS", "Estimate", "counted", "estimable", "estimated"]

ROWS, CALLS = "", "\n"
"""What counts rows and calls among the units. Names of units are printable, so no unit has these names."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What calls for a frame would cost. Print it."""

    function: str
    """The name and version of the function, or of each function."""
    rows: int
    calls: int
    """Rows that the function would be called for: not those with a null, if it skips nulls."""
    distinct_calls: int
    """Number of different arguments among them. A cache makes no more calls, if it has none of the outcomes yet."""
    amounts: Mapping[str, float]
    """By unit, what the calls for different arguments cost together."""
    amounts_without_cache: Mapping[str, float]
    """By unit, what the calls for all rows cost together."""
    parts: tuple["Estimate", ...] = ()
    """The estimate of each call, if it is that of several ones."""

    @classmethod
    def of_all(cls, parts: Sequence["Estimate"]) -> "Estimate":
        """The estimate of several calls for the same rows."""
        once: dict[str, float] = {}
        every: dict[str, float] = {}
        for part in parts:
            add_amounts(once, part.amounts)
            add_amounts(every, part.amounts_without_cache)
        calls, different = sum(part.calls for part in parts), sum(part.distinct_calls for part in parts)
        names = ", ".join(dict.fromkeys(part.function for part in parts))
        return cls(names, parts[0].rows, calls, different, once, every, tuple(parts))

    def __str__(self) -> str:
        whole = f"{len(self.parts)} calls of each row" if self.parts else self.function
        return "".join(map(str, self.parts)) + (
            f"{whole}: {self.rows:,} rows, {self.calls:,} calls, {self.distinct_calls:,} of them different\n"
            f"  each different call once, as with a cache: {amounts_text(self.amounts)}\n"
            f"  all calls, as without a cache: {amounts_text(self.amounts_without_cache)}\n"
        )


def estimated(
    spark: SparkSession, config: ClientConfig, frame: DataFrame, call: object,
    calls_in: Callable[[DataFrame], Sequence[str]],
) -> Estimate:  # fmt: skip
    """Run the query that estimates, unless it needs calls, which `calls_in` finds in a frame. Raises PlanError."""
    found = estimable(frame, call)
    spec = found.spec
    config = dataclasses.replace(config, estimates=True, budget=None, reporter=None, session="")
    names = [f"argument_{position}" for position in range(len(found.arguments))]
    arguments = [column_of(argument).alias(name) for argument, name in zip(found.arguments, names, strict=True)]
    if needed := calls_in(frame.select(*arguments)):
        raise PlanError(
            f"estimate of {spec.key}: its rows need calls of {', '.join(needed)}, which would be made; store their "
            "values first"
        )
    amounts_of = dataclasses.replace(spec, result=AMOUNTS)
    function = spark_function(
        plan_call(amounts_of, config, len(names), {"output_mode": OutputMode.ORDERED.value}, None)
    )
    different = grouped(frame.select(*arguments), names, [F.count("*").alias("rows")])
    costs = different.select("rows", function(*names).alias("cost"))
    counted = F.map_concat(
        F.coalesce("cost", F.create_map().cast("map<string, double>")),
        F.create_map(F.lit(ROWS), F.lit(1.0)),
        F.when(F.col("cost").isNotNull(), F.create_map(F.lit(CALLS), F.lit(1.0))).otherwise(
            F.create_map().cast("map<string, double>")
        ),
    )
    units = costs.select("rows", F.explode(counted).alias("unit", "amount"))
    amounts = [F.sum("amount").alias("once"), F.sum(F.col("amount") * F.col("rows")).alias("all")]
    sums = grouped(units, ["unit"], amounts).collect()
    once, all_rows = ({row.unit: row[place] for row in sums} for place in (1, 2))
    calls, different_calls = (int(amounts.pop(CALLS, 0)) for amounts in (all_rows, once))
    rows, _ = int(all_rows.pop(ROWS, 0)), once.pop(ROWS, 0)
    return Estimate(spec.key, rows, calls, different_calls, dict(sorted(once.items())), dict(sorted(all_rows.items())))


NO_COSTS = (
    "it is called for bundles, with the rows of many keys, which depend on tasks and on `size`; such functions declare "
    "no cost. After a run, remote.explain tells what calls have cost"
)
"""Why calls of aggregate and process table functions have no estimate."""


def estimable(frame: DataFrame, call: object) -> ColumnCall:
    """The call of a column. Raises PlanError if what it would cost cannot be told."""
    if isinstance(call, OverExpression):
        call = call.expression
    if isinstance(call, AggregateExpression):
        raise PlanError(f"estimate of the aggregate function {call.spec.key}: none, because {NO_COSTS}")
    if isinstance(call, DataFrame):
        raise PlanError(
            "estimate takes calls in columns, and got a frame as a call: the calls of a process table function have no "
            f"estimate, because {NO_COSTS}; for a query, see remote.explain(query, estimate=True)"
        )
    found = call_of(call)
    if found is None or found.spec.kind is not FunctionKind.SCALAR:
        raise PlanError(
            "estimate takes a frame and a call of a remote scalar function, such as remote.estimate(df, "
            f"remote.function('complete')('prompt')); it got {call!r}"
        )
    spec = found.spec
    if frame.isStreaming:
        raise PlanError(f"estimate of {spec.key}: the frame is a stream, whose rows are not known; pass a table")
    if not found.arguments:
        raise PlanError(f"estimate of {spec.key}: the call has no arguments, so all calls cost the same")
    if found.earlier is not None:
        raise PlanError(
            f"estimate of {spec.key}: a cascade calls it for a part of the rows only; estimate the two functions by "
            "themselves, and see the share of the rows with print(cascade)"
        )
    if any(call_of(argument) is not None for argument in found.arguments):
        raise PlanError(
            f"estimate of {spec.key}: an argument is a remote call, which would be made; estimate that call, or store "
            "its values first"
        )
    return found


def counted(spec: FunctionSpec, frame: DataFrame) -> Estimate:
    """The estimate of calls whose arguments are the columns of a frame, without amounts."""
    given = F.lit(True)
    if spec.nulls is NullCall.SKIP:
        for name in frame.columns:
            given = given & F.col(name).isNotNull()
    called = grouped(frame, frame.columns, [F.count("*").alias("rows")]).withColumn("called", given)
    of_calls = F.when(F.col("called"), F.col("rows"))
    found = called.agg(F.sum("rows"), F.sum(of_calls), F.count(of_calls)).first()
    assert found is not None  # an aggregate without keys has a row
    rows, calls, different = (number or 0 for number in found)
    return Estimate(spec.key, rows, calls, different, {}, {})
