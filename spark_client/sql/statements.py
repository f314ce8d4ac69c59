"""Implements `RemoteSession.sql`: runs a text as Spark does, with remote functions."""

from collections import Counter
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from sqlglot import exp

from remote_udf.functions import FunctionKind
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import quoted
from spark_client.sql.argument_counts import require_counts
from spark_client.sql.empty_calls import with_shown_names, without_empty_calls
from spark_client.sql.fewer_calls.explaining import BEGINNINGS, query_of
from spark_client.sql.fewer_calls.fused_calls import FusedCalls
from spark_client.sql.fewer_calls.joined_calls import without_derived_calls
from spark_client.sql.fewer_calls.limited_calls import LimitedCalls
from spark_client.sql.fewer_calls.single_calls import SingleCalls
from spark_client.sql.fewer_calls.unused_columns import without_unused_columns
from spark_client.sql.function_descriptions import description_of_function
from spark_client.sql.models.call_estimates import CallEstimates
from spark_client.sql.models.condition_order import ConditionOrder
from spark_client.sql.models.model_statements import is_model_statement, run_model_statement
from spark_client.sql.parquet.parquet_tables import NAME as REMOTE_PARQUET
from spark_client.sql.parquet.parquet_tables import put_parquet
from spark_client.sql.rewriting import MODEL_CALLS, Rewriting
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.stream_times import without_time
from spark_client.sql.rows.workspace import Workspace
from spark_client.sql.sets.shared_calls import SharedCalls
from spark_client.sql.sets.statement_sets import run_set, statements_of
from spark_client.sql.tables.lateral_calls import may_have_lateral_calls, with_lateral_calls
from spark_client.sql.tables.process_functions import ProcessFunctions
from spark_client.sql.tables.window_functions import has_window_calls
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import Text, error_at
from spark_client.sql.text.variables import substituted
from spark_client.sql.unknown_names import naming_unknown
from spark_client.windows.columns import WINDOW_START

__all__ = ["run_text"]

_PLANNED = (exp.Query, exp.Insert, exp.Create, exp.Set)
"""The statements that may have remote aggregates and table functions."""


def run_text(
    functions: SqlFunctions, text: Text, order: ConditionOrder, stages: list[str] | None = None,
    estimates: CallEstimates | None = None,
) -> DataFrame:  # fmt: skip
    """Return the DataFrame of a query, or the result of a statement.

    A text without remote aggregates and table functions is passed to Spark unchanged. The steps that the text is
    rewritten into are appended to `stages`, with what `estimates` says of its calls. Raises PlanError, UnknownFunction,
    and any error of Spark.
    """
    text = substituted(functions.spark, text)
    with naming_unknown(functions, text):
        ready = without_empty_calls(text, functions.empty)
        frame = _Run(functions, order, stages, estimates).frame(ready)
        return frame if ready is text else with_shown_names(frame)


class _Run:
    """The execution of one text. With `stages` its statements are planned, but not run."""

    def __init__(
        self, functions: SqlFunctions, order: ConditionOrder, stages: list[str] | None,
        estimates: CallEstimates | None,
    ) -> None:  # fmt: skip
        self._functions = functions
        self._estimates = estimates
        self._order = order
        self._stages = stages
        self._shared = SharedCalls()
        self._single = SingleCalls(functions)
        self._fuse = FusedCalls(functions)
        self._limit = LimitedCalls(functions)

    def frame(self, text: Text) -> DataFrame:
        if is_model_statement(text):
            if self._stages is not None:
                raise PlanError("a statement about models has no plan to explain")
            return run_model_statement(self._functions, text)
        if self._stages is not None:
            text = query_of(text)
        elif (described := description_of_function(self._functions, text)) is not None:
            return described
        elif (answer := self._about_query(text)) is not None:
            return answer
        statements = statements_of(text)
        if statements is not None:
            trees = [self._rewritten(each) or (self._workspace(each), each.tree) for each in statements]
            return run_set(self._shared, trees, self._stages)
        found = self._rewritten(text)
        if found is None:
            return self._of_windows(text) or self._of_scalar_calls(text) or self._unchanged(text)
        workspace, tree = found
        if _is_view(tree) and tree.expression is not None:
            return _create_view(workspace, tree)
        return without_time(workspace.run(tree, whole=True))

    def _about_query(self, text: Text) -> DataFrame | None:
        """The answer to DESCRIBE QUERY of a query that is planned here; None for any other statement.

        Raises PlanError for EXPLAIN of such a query.
        """
        word = text.tokens[0].text.upper() if text.tokens else ""
        begin = next((index for index, token in enumerate(text.tokens[:3]) if token.token_type in BEGINNINGS), 0)
        if word not in ("EXPLAIN", "DESC", "DESCRIBE") or not begin:
            return None
        query = replace(text, part=text.tokens[begin:])
        if self._rewritten(query) is None:
            return None
        if word == "EXPLAIN":
            raise PlanError("EXPLAIN: Spark cannot read this query, which is planned here: call remote.explain(query)")
        fields = self.frame(query).schema.fields
        rows = [(each.name, each.dataType.simpleString(), each.metadata.get("comment")) for each in fields]
        return self._functions.spark.createDataFrame(rows, "col_name string, data_type string, comment string")

    def _unchanged(self, text: Text) -> DataFrame:
        if text.part:
            return self._workspace(text).as_is().run(text.tree)
        return self._functions.spark.sql(text.sql, args=text.args, **text.fields)

    def _workspace(self, text: Text) -> Workspace:
        return Workspace(self._functions, text, self._single, self._fuse)

    def _rewritten(self, text: Text) -> tuple[Workspace, Node] | None:
        """Rewrite a statement; None if it has neither remote aggregates nor table functions."""
        functions = self._functions
        for name in functions.of_kind(FunctionKind.SCALAR, text.called):
            functions.register(name)
        kinds = {functions.kind(name) for name in text.called}
        table_functions = has_window_calls(text.tokens) or any(name.upper() in MODEL_CALLS for name in text.called)
        laterals = may_have_lateral_calls(text.tokens, functions)
        planned = FunctionKind.AGGREGATE in kinds or table_functions
        reads = any(name.lower() == REMOTE_PARQUET for name in text.called)
        if not planned and not reads and not laterals and FunctionKind.PROCESS not in kinds:
            return None
        if isinstance(text.args, (list, tuple)) and text.args:
            raise PlanError("this query is run in pieces: give its parameters names, as in :limit")
        require_counts(functions, text.tree)
        workspace = self._workspace(text)
        plain = with_lateral_calls(workspace, text.tree) if laterals else text.tree
        planned = planned or plain is not text.tree
        rewriting = Rewriting(workspace)
        before = len(workspace.stages)
        process = ProcessFunctions(workspace, rewriting.table, self._shared)
        ordered = self._ordered(workspace.as_is(), plain)
        self._estimate(workspace.as_is(), ordered)
        tree = process.rewritten(put_parquet(workspace, ordered) if reads else ordered)
        if not planned and not reads and not process.called:
            return None
        if not isinstance(tree, _PLANNED) or (isinstance(tree, exp.Create) and tree.kind not in ("TABLE", "VIEW")):
            what = "INSERT of several tables" if isinstance(tree, exp.MultitableInserts) else tree.key.upper()
            raise PlanError(
                f"a statement {what} {getattr(tree, 'kind', '') or ''}".rstrip()
                + " cannot have remote aggregates or table functions: create a temporary view of the query first"
            )
        rewritten = rewriting.statement(tree)
        query = rewritten if isinstance(rewritten, exp.Query) else rewritten.expression
        used = tree if table_functions else without_unused_columns(tree, functions)
        if used is not tree and isinstance(query, exp.Query):
            # An error in what nothing reads is an error, too.
            workspace.run(query).schema  # noqa: B018
            del workspace.stages[before:]
            rewritten = rewriting.statement(used)
        self._explain([f"{name}: a process table function on the server" for name in process.called])
        self._explain(workspace.stages)
        return workspace, rewritten

    def _ordered(self, workspace: Workspace, tree: Node) -> Node:
        return self._order.ordered(self._functions, workspace, tree, self._stages)

    def _estimate(self, workspace: Workspace, tree: Node) -> None:
        if self._estimates is not None:
            self._explain(self._estimates.lines(self._functions, workspace, tree))

    def _explain(self, stages: list[str]) -> None:
        if self._stages is not None:
            self._stages += stages

    def _of_windows(self, text: Text) -> DataFrame | None:
        """The DataFrame of a query over a view of a stream's windows; None if Spark can run the text unchanged."""
        if WINDOW_START not in text.sql.lower() or isinstance(text.args, (list, tuple)):
            return None
        workspace = self._workspace(text)
        try:
            tree = text.tree
            rewritten = Rewriting(workspace).statement(tree)
        except (PlanError, PySparkException):
            return None  # Spark runs the text, or reports the error
        self._explain(workspace.stages)
        if rewritten == tree or not isinstance(rewritten, exp.Query):
            return None
        return without_time(workspace.run(rewritten))

    def _of_scalar_calls(self, text: Text) -> DataFrame | None:
        """The DataFrame of a text that would repeat calls unnecessarily; None if Spark can run the text unchanged."""
        called = Counter(name.casefold() for name in text.called if self._functions.is_remote_scalar(name))
        if not called:
            return None
        try:
            tree = text.tree
        except PlanError:
            return None  # Spark runs the text, or reports the error
        require_counts(self._functions, tree)
        if isinstance(text.args, (list, tuple)) or not isinstance(tree, (exp.Query, exp.Insert, exp.Create)):
            return None
        workspace = self._workspace(text).as_is()
        ordered = self._limit(workspace, self._ordered(workspace, tree))
        self._explain(self._limit.limits)
        self._estimate(workspace, ordered)
        once = self._single(workspace, ordered, ()) if max(called.values()) > 1 else ordered
        rewritten = once if _is_view(tree) else without_derived_calls(workspace, once)
        if isinstance(rewritten, exp.Query):
            fused = self._fuse.frame(workspace, rewritten)
            return fused if fused is not None or rewritten is tree else workspace.run(rewritten)
        ready = self._fuse(workspace, rewritten)
        return None if ready is tree else workspace.run(ready)


def _is_view(tree: Node) -> bool:
    return isinstance(tree, exp.Create) and tree.kind == "VIEW"


def _create_view(workspace: Workspace, create: Node) -> DataFrame:
    """Create a temporary view of a DataFrame, which a statement of Spark cannot do."""
    kinds = create.args["properties"].expressions if create.args.get("properties") else []
    if not any(isinstance(kind, exp.TemporaryProperty) for kind in kinds):
        raise error_at(create, "a view with remote aggregates must be temporary: CREATE TEMPORARY VIEW")
    everywhere = any(isinstance(kind, exp.GlobalProperty) for kind in kinds)
    frame = without_time(workspace.run(create.expression))
    target = create.this
    if isinstance(target, exp.Schema):
        frame = frame.toDF(*(each.name for each in target.expressions))
        target = target.this
    name = quoted(target.name)
    if create.args.get("exists") and workspace.spark.catalog.tableExists(name):
        return workspace.spark.createDataFrame([], "")
    if everywhere:
        make = frame.createOrReplaceGlobalTempView if create.args.get("replace") else frame.createGlobalTempView
    else:
        make = frame.createOrReplaceTempView if create.args.get("replace") else frame.createTempView
    make(name)
    return workspace.spark.createDataFrame([], "")
