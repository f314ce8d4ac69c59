"""SqlQueries plans the SQL of one remote session, and explains the plans."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from remote_udf.functions import FunctionKind
from spark_client.base.call_costs import CallCost
from spark_client.base.notebooks import Explanation
from spark_client.functions.aggregate import RemoteAggregate
from spark_client.functions.directory import Functions
from spark_client.functions.fused import FusedFunctions
from spark_client.functions.scalar import RemoteFunction
from spark_client.models.cascade import Cascade
from spark_client.sql.fewer_calls.explaining import (
    called_in,
    frame_stages,
    plan_of,
    query_of,
    scalar_stages,
    sorting_stages,
    without_kept,
)  # fmt: skip
from spark_client.sql.models.call_estimates import CallEstimates
from spark_client.sql.models.condition_order import ConditionOrder
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.models import Model
from spark_client.sql.statements import run_text
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.settings import parser_settings

__all__ = ["SqlQueries"]


class SqlQueries:
    """Keeps what the queries of a session share: the functions that it has registered with Spark or looked up there."""

    def __init__(
        self, spark: SparkSession, functions: Functions,
        function: Callable[[str, Mapping[str, object]], RemoteFunction | RemoteAggregate],
        process: Callable[..., DataFrame], order: ConditionOrder, cost_of: Callable[[str], CallCost], tasks: int | None,
    ) -> None:  # fmt: skip
        """`function` returns the function with a name, given call options; `process` is that of `RemoteSession`.

        `cost_of` and `tasks` are those of CallEstimates.
        """
        self._estimates = CallEstimates(cost_of, tasks, self.calls_in)
        self.cascades: dict[str, Cascade] = {}
        """The cascades of the session by the names that Spark knows them by."""
        self._spark = spark
        self._functions = functions
        self._function = function
        self._process = process
        self._order = order
        self._registered: dict[str, Mapping[str, object]] = {}
        """The options of functions that the user registered, by case-folded name: a query must not change them."""
        self._fused = FusedFunctions()
        self._models: dict[str, Model] = {}
        self._classes: dict[str, str] = {}
        """The classes of functions in Spark, by case-folded name, which queries looked up."""

    def registered(self, names: Iterable[str], options: Mapping[str, object]) -> None:
        """Remember the options of functions that the user has registered under these names."""
        self._registered |= {name.casefold(): options for name in names}

    def run(self, text: Text) -> DataFrame:
        """Run a query, as `RemoteSession.sql` does."""
        return run_text(self._sql_functions(), self._as_session(text), self._order)

    def explained(self, text: Text, *, estimate: bool = False) -> Explanation:
        """Describe the plan of a query, as `RemoteSession.explain` does."""
        stages: list[str] = []
        functions, text = self._sql_functions(), self._as_session(text)
        plan = plan_of(run_text(functions, text, self._order, stages, self._estimates if estimate else None))
        query = query_of(text)
        scalars = functions.of_kind(FunctionKind.SCALAR, query.called)
        calls = scalar_stages(plan, scalars, query.called, self._fused.templates)
        called = {each.lower() for each in query.called}
        weighted = self._weighted(name for name in self._functions.versions if name.lower() in called)
        known = [*weighted, *self._sorting(plan), *self._known(plan)]
        return _explanation([*dict.fromkeys(stages), *calls, *known], plan)

    def _as_session(self, text: Text) -> Text:
        return replace(text, settings=parser_settings(self._spark))

    def explained_frame(self, frame: DataFrame) -> Explanation:
        """Describe the plan of a DataFrame."""
        plan = plan_of(frame)
        names = [spec.name for spec in self._functions]
        weighted = self._weighted(name for name in self._functions.versions if f"{name}(" in plan)
        stages = frame_stages(plan, names, self._fused.templates)
        return _explanation([*stages, *weighted, *self._sorting(plan), *self._known(plan)], plan)

    def calls_in(self, frame: DataFrame) -> list[str]:
        """The functions and cascades that are called to compute a frame."""
        if frame.isStreaming:
            return []
        names = [name for spec in self._functions for name in (spec.name, spec.key)]
        return called_in(without_kept(plan_of(frame)), [*names, *self.cascades], self._fused.templates)

    def _weighted(self, names: Iterable[str]) -> list[str]:
        """A line for each of these functions whose version in this session was drawn."""
        versions, weighted = self._functions.versions, {key.partition("@")[0] for key in self._functions.weights}
        return [
            f"{name}: this session has {name}@{versions[name]}, drawn by the weights of the servers"
            for name in names if name in weighted
        ]  # fmt: skip

    def _known(self, plan: str) -> list[str]:
        """What this session knows of the functions that the plan calls: their thresholds, and what calls have cost."""
        fused = self._fused.templates
        used = [self.cascades[name] for name in called_in(plan, self.cascades, fused)]
        lines = [each.describe() for each in used]
        specs = [spec for spec in self._functions if spec.kind is FunctionKind.SCALAR]
        names = called_in(plan, [*(spec.name for spec in specs), *(spec.key for spec in specs)], fused)
        inside = {function.spec.key for cascade in used for function in (cascade.cheap, cascade.dear)}
        for spec in specs:
            cost = self._estimates.cost_of(spec.key) if {spec.name, spec.key} & {*names} or spec.key in inside else None
            if cost is not None and cost.rows:
                lines.append(
                    f"{spec.key}: a call has cost {cost.of_a_row()}, the mean of {cost.rows:,} in this session"
                )
        return lines

    def _sorting(self, plan: str) -> list[str]:
        return sorting_stages(plan, [*(spec.name for spec in self._functions), *self._fused.templates])

    def _sql_functions(self) -> SqlFunctions:
        return SqlFunctions(
            self._spark, self._functions, self._registered, self._classes, self._function, self._process, self._fused,
            self._models,
        )  # fmt: skip


def _explanation(stages: Sequence[str], plan: str) -> Explanation:
    lines = [f"{number}. {line}" for number, line in enumerate(stages or ["all of it is left to Spark"], 1)]
    return Explanation("\n".join([*lines, "", plan]))
