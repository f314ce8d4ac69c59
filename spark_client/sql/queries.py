"""SqlQueries plans the SQL of one remote session, and explains the plans."""

from collections.abc import Callable, Mapping, Sequence
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
        return self._explanation([*dict.fromkeys(stages), *calls], plan, lambda name: name.lower() in called)

    def _as_session(self, text: Text) -> Text:
        return replace(text, settings=parser_settings(self.session.spark))

    def explained_frame(self, frame: DataFrame) -> Explanation:
        """Describe the plan of a DataFrame."""
        plan = plan_of(frame)
        stages = frame_stages(plan, [spec.name for spec in self.session.functions], self.session.fused.templates)
        return self._explanation(stages, plan, lambda name: f"{name}(" in plan)

    def calls_in(self, frame: DataFrame) -> list[str]:
        """The functions and cascades that are called to compute a frame."""
        return calls_in(self.session, frame)

    def _explanation(self, stages: Sequence[str], plan: str, is_called: Callable[[str], bool]) -> Explanation:
        """The stages of a query, and what its plan and this session tell about the functions that are called."""
        functions = self.session.functions
        weighted = {key.partition("@")[0] for key in functions.weights}
        known = aggregate_stages(plan)
        known += [
            f"{name}: this session has {name}@{version}, drawn by the weights of the servers"
            for name, version in functions.versions.items() if name in weighted and is_called(name)
        ]  # fmt: skip
        known += sorting_stages(plan, [*(spec.name for spec in functions), *self.session.fused.templates])
        known += self._known(plan)
        shown = [*stages, *known] or ["all of it is left to Spark"]
        lines = [f"{number}. {line}" for number, line in enumerate(shown, 1)]
        return Explanation("\n".join([*lines, "", plan]))

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
