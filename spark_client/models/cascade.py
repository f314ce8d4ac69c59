"""Cascade: two functions as one. The dear one is called for the rows of which the cheap one is not confident enough."""

import dataclasses
import itertools
from collections.abc import Mapping
from functools import partial

from pyspark.sql import Column

from remote_udf.options import OnError
from spark_client.base.calls import ErrorPolicy
from spark_client.base.statistics import CallCost, amounts_text
from spark_client.base.types import spark_type
from spark_client.executor.engine.planned_calls import EarlierAnswers, PlannedCall
from spark_client.executor.scalar.column import evaluate_last, result_type
from spark_client.functions.arguments import column_of, require_count
from spark_client.functions.column_calls import ColumnCall, EarlierCall, with_call
from spark_client.functions.scalar import RemoteFunction, SparkFunction, new_spark_function, require_no_dead_letter
from spark_client.models.thresholds import Deferral

__all__ = ["Cascade"]

SHOWN_ROWS = 1_000
"""Number of rows whose expected cost is shown."""


@dataclasses.dataclass(frozen=True)
class Cascade:
    """A cheap function, and a dear one for the rows of which the cheap one is not confident enough.

    `RemoteSession.cascade` makes it. Call it with columns or column names, like a `RemoteFunction`: the call is a
    column for `select`, `where` and `RemoteSession.with_columns`. Print it to see what the sample has shown.
    """

    cheap: RemoteFunction = dataclasses.field(repr=False)
    dear: RemoteFunction = dataclasses.field(repr=False)
    threshold: float | None
    """The least confidence with which the answer of `cheap` is taken; None if `dear` is called for every row."""
    target: float
    confidence_level: float
    sample_rows: int
    """Rows of the sample that `dear` has answered."""
    accepted_rows: int
    """Rows of them at or above the threshold, which `cheap` answers."""
    agreeing_rows: int
    """Rows of those for which both functions agree."""
    least_agreement: float
    """The lower bound of the agreement above the threshold, in what the sample was drawn from."""
    failed_rows: int = 0
    """Rows of the sample for which `dear` failed. They are not counted elsewhere."""
    sample_cost: Mapping[str, CallCost] = dataclasses.field(default_factory=dict, repr=False)
    """What the calls for the sample have cost, by function. Empty if tasks cannot report it."""
    mean_cost: Mapping[str, CallCost] = dataclasses.field(default_factory=dict, repr=False)
    """What a call has cost in this session, by function, if that is known."""
    _value: str = dataclasses.field(default="value", repr=False)
    _confidence: str = dataclasses.field(default="confidence", repr=False)
    _known: dict[str, "Cascade"] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """The cascades of the session by the names that Spark knows them by, for `RemoteSession.explain`."""
    _planned: dict[object, SparkFunction] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def accepted_share(self) -> float:
        """The share of the rows of the sample that `cheap` answers, from 0 to 1."""
        return self.accepted_rows / self.sample_rows

    @property
    def agreement(self) -> float | None:
        """The share of the rows above the threshold for which both functions agree; None without a threshold."""
        return self.agreeing_rows / self.accepted_rows if self.accepted_rows else None

    def expected_cost(self, rows: int) -> dict[str, float]:
        """What the calls for this number of rows cost, by unit, if they are like the sample and no cache has them.

        It is empty if no cost was measured, as when all answers for the sample were in the cache.
        """
        shares = {self.dear.spec.key: 1 - self.accepted_share}
        if self.threshold is not None:
            shares[self.cheap.spec.key] = 1.0
        if any(name not in self.mean_cost for name, share in shares.items() if share):
            return {}
        amounts: dict[str, float] = {}
        for name, share in shares.items():
            for unit, amount in (self.mean_cost[name].spent if share else {}).items():
                amounts[unit] = amounts.get(unit, 0.0) + share * rows * amount
        return amounts

    def __call__(self, *arguments: object) -> Column:
        """Return the column of the values: those of `cheap` from the threshold on, otherwise those of `dear`.

        Both functions get the arguments, which are those of the sample. If `cheap` fails, `dear` is called. If `dear`
        fails, its `on_error` applies.

        Raises:
            PlanError: The number of arguments is wrong.
        """
        for function in (self.cheap, self.dear):
            require_count(function.spec, len(arguments))
        column = self._function(len(arguments))(*map(column_of, arguments))
        call = ColumnCall(self.dear.spec, arguments, self.dear.options, value_field=self._field)
        if self.threshold is not None:
            cheap = ColumnCall(self.cheap.spec, arguments, self.cheap.options)
            call = dataclasses.replace(call, earlier=EarlierCall(cheap, self._rule))
        return with_call(column, call)

    def register(self, name: str) -> str:
        """Register the cascade as a temporary function of Spark SQL, and return the name."""
        self.dear.spark.udf.register(name, self._function(None))
        self._known[name] = self
        return name

    def __str__(self) -> str:
        cheap, dear = self.cheap.spec.key, self.dear.spec.key
        lines = [f"{self.describe()}\n", f"  sample: {self.sample_rows:,} rows"]
        lines[-1] += f", and {self.failed_rows:,} for which {dear} failed\n" if self.failed_rows else "\n"
        if self.threshold is not None:
            lines.append(
                f"  {cheap} answers {self.accepted_share:.1%} of them; both agree on {self.agreement:.1%} of these, "
                f"and on {self.least_agreement:.1%} at least at a confidence level of {self.confidence_level:.6g} "
                f"(target {self.target:.6g})\n"
            )
        if self.sample_cost:
            spent = (f"{cost.rows:,} calls of {name}: {cost}" for name, cost in self.sample_cost.items())
            lines.append(f"  the sample has cost: {'; '.join(spent)}\n")
        expected, alone = self.expected_cost(SHOWN_ROWS), self.mean_cost.get(dear)
        if expected and alone is not None:
            without = {unit: SHOWN_ROWS * amount for unit, amount in alone.spent.items()}
            lines.append(
                f"  expected for {SHOWN_ROWS:,} rows: {amounts_text(expected)}; {dear} alone: {amounts_text(without)}\n"
            )
        return "".join(lines)

    def describe(self) -> str:
        """Say in a line which function is called for which rows."""
        cheap, dear = self.cheap.spec.key, self.dear.spec.key
        if self.threshold is None:
            return (
                f"cascade: {dear} is called for every row, and {cheap} for none, because no threshold reaches the "
                f"target {self.target:.6g} on the sample"
            )
        return f"cascade: {cheap}, and {dear} for rows with a confidence below {self.threshold:.6g}"

    @property
    def _rule(self) -> Deferral:
        assert self.threshold is not None
        return Deferral(self._value, self._confidence, self.threshold, whole=self._field is not None)

    @property
    def _field(self) -> str | None:
        """The field that is the value, if `dear` returns the struct that `cheap` returns."""
        return self._value if self.dear.spec.result == self.cheap.spec.result else None

    def _function(self, arguments: int | None) -> SparkFunction:
        """The function of Spark that makes the calls. Equal calls get the same object, so that Spark merges them."""
        dear = self.dear.plan(arguments)
        require_no_dead_letter(dear)
        calls = [PlannedCall(dear, (), field=self._field)]
        if self.threshold is not None:
            cheap = dataclasses.replace(self.cheap.plan(arguments), policy=ErrorPolicy(OnError.NULL))
            calls = [PlannedCall(cheap, ()), dataclasses.replace(calls[0], earlier=EarlierAnswers(0, self._rule))]
        key = tuple((tuple(sorted(each.call.options.items())), each.call.policy, arguments) for each in calls)
        if key not in self._planned:
            self._planned[key] = self._new_function(calls)
        return self._planned[key]

    def _name(self, first: str) -> str:
        """A name that no other cascade of the session has."""
        names = itertools.chain([first], (f"{first}_{number}" for number in itertools.count(2)))
        name = next(name for name in names if self._known.get(name, self) is self)
        self._known[name] = self
        return name

    def _new_function(self, calls: list[PlannedCall]) -> SparkFunction:
        name = self._name("_or_".join(each.call.spec.name for each in calls))
        result = spark_type(result_type(calls[-1].call, calls[-1].result_type))
        deterministic = all(each.call.spec.deterministic for each in calls)
        return new_spark_function(partial(evaluate_last, calls), name, result, deterministic=deterministic)
