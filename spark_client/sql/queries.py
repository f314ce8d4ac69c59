"""SqlQueries plans the SQL of one remote session, and explains the plans."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from remote_udf.functions import FunctionKind
from spark_client.base.notebooks import Explanation
from spark_client.sql.fewer_calls.explaining import (
    aggregate_stages,
    called_in,
    calls_in,
    frame_stages,
    plan_of,
    scalar_stages,
    sorting_stages,
)  # fmt: skip
from spark_client.sql.rows.functions import SqlFunctions, SqlSession
from spark_client.sql.statement_sets import query_of
from spark_client.sql.statements import run_text
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.settings import parser_settings

__all__ = ["SqlQueries"]


class SqlQueries:
    """Plans what the users of one session write."""

    def __init__(self, session: SqlSession) -> None:
        self.session = session

    def registered(self, options: Mapping[str, Mapping[str, object]]) -> None:
        """Remember the options of functions that the user has registered, by their names."""
        self.session.registered |= {name.casefold(): given for name, given in options.items()}

    def is_built_in(self, name: str) -> bool:
        """Whether a name is a function of Spark's, which precedes remote functions of this name."""
        return SqlFunctions(self.session).is_built_in(name)

    def run(self, text: Text) -> DataFrame:
        """Run a query, as `RemoteSession.sql` does."""
        return run_text(SqlFunctions(self.session), self._as_session(text))

    def explained(self, text: Text, *, estimate: bool = False) -> Explanation:
        """Describe the plan of a query, as `RemoteSession.explain` does."""
        stages: list[str] = []
        functions, text = SqlFunctions(self.session, estimate=estimate), self._as_session(text)
        plan = plan_of(run_text(functions, text, stages))
        query = query_of(text)
        scalars = functions.of_kind(FunctionKind.SCALAR, query.called)
        calls = scalar_stages(plan, scalars, query.called, self.session.fused.templates)
        called = {each.lower() for each in query.called}
        weighted = self._weighted(name for name in self.session.functions.versions if name.lower() in called)
        known = [*aggregate_stages(plan), *weighted, *self._sorting(plan), *self._known(plan)]
        return _explanation([*dict.fromkeys(stages), *calls, *known], plan)

    def _as_session(self, text: Text) -> Text:
        return replace(text, settings=parser_settings(self.session.spark))

    def explained_frame(self, frame: DataFrame) -> Explanation:
        """Describe the plan of a DataFrame."""
        plan = plan_of(frame)
        names = [spec.name for spec in self.session.functions]
        weighted = self._weighted(name for name in self.session.functions.versions if f"{name}(" in plan)
        stages = frame_stages(plan, names, self.session.fused.templates)
        return _explanation(
            [*stages, *aggregate_stages(plan), *weighted, *self._sorting(plan), *self._known(plan)], plan
        )

    def calls_in(self, frame: DataFrame) -> list[str]:
        """The functions and cascades that are called to compute a frame."""
        return calls_in(self.session, frame)

    def _weighted(self, names: Iterable[str]) -> list[str]:
        """A line for each of these functions whose version in this session was drawn."""
        functions = self.session.functions
        versions, weighted = functions.versions, {key.partition("@")[0] for key in functions.weights}
        return [
            f"{name}: this session has {name}@{versions[name]}, drawn by the weights of the servers"
            for name in names if name in weighted
        ]  # fmt: skip

    def _known(self, plan: str) -> list[str]:
        """What this session knows of the functions that the plan calls: their thresholds, and what calls have cost."""
        fused = self.session.fused.templates
        used = [self.session.cascades[name] for name in called_in(plan, self.session.cascades, fused)]
        lines = [each.describe() for each in used]
        specs = [spec for spec in self.session.functions if spec.kind is FunctionKind.SCALAR]
        names = called_in(plan, [*(spec.name for spec in specs), *(spec.key for spec in specs)], fused)
        inside = {function.spec.key for cascade in used for function in (cascade.cheap, cascade.dear)}
        for spec in specs:
            cost = self.session.cost_of(spec.key) if {spec.name, spec.key} & {*names} or spec.key in inside else None
            if cost is not None and cost.rows:
                lines.append(
                    f"{spec.key}: a call has cost {cost.of_a_row()}, the mean of {cost.rows:,} in this session"
                )
        return lines

    def _sorting(self, plan: str) -> list[str]:
        return sorting_stages(plan, [*(spec.name for spec in self.session.functions), *self.session.fused.templates])


def _explanation(stages: Sequence[str], plan: str) -> Explanation:
    lines = [f"{number}. {line}" for number, line in enumerate(stages or ["all of it is left to Spark"], 1)]
    return Explanation("\n".join([*lines, "", plan]))
