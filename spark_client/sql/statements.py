"""Implements `RemoteSession.sql`: runs a text as Spark does, with remote functions."""

import inspect
from collections.abc import Sequence
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from sqlglot import exp

from remote_udf.functions import FunctionKind, FunctionSpec
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import quoted
from spark_client.functions.registered_names import shown
from spark_client.sql.passes import Trees, rewritten, scope_of
from spark_client.sql.registry import TABLE_FUNCTIONS, result_of_statement
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.shared_operators import SharedOperators
from spark_client.sql.rows.stream_times import without_time
from spark_client.sql.statement_sets import BEGINNINGS, query_of, run_set, statements_of
from spark_client.sql.tables.lateral_calls import may_have_lateral_calls
from spark_client.sql.tables.window_functions import has_window_calls
from spark_client.sql.text.nodes import Node, query_in
from spark_client.sql.text.parsing import Text, error_at
from spark_client.sql.text.substitutions import with_shown_names, with_variables, without_empty_calls
from spark_client.sql.wrong_calls import naming_unknown
from spark_client.windows.columns import WINDOW_START

__all__ = ["run_text"]


def run_text(functions: SqlFunctions, text: Text, stages: list[str] | None = None) -> DataFrame:
    """Return the DataFrame of a query, or the result of a statement.

    A text that no pass changes is passed to Spark as it is written. With `stages` the steps of the passes are appended
    there, and nothing is run. Raises PlanError, UnknownFunction, and any error of Spark.
    """
    text = with_variables(functions.spark, text)
    with naming_unknown(functions, text):
        ready = without_empty_calls(text, functions.empty)
        frame = _Run(functions, stages).frame(ready)
        return frame if ready is text else with_shown_names(frame)


class _Run:
    """The execution of one text."""

    def __init__(self, functions: SqlFunctions, stages: list[str] | None) -> None:
        self._functions = functions
        self._stages = stages
        self._shared = SharedOperators()

    def frame(self, text: Text) -> DataFrame:
        explained = self._stages is not None
        if (answer := result_of_statement(self._functions, text, explained=explained)) is not None:
            return answer
        if explained:
            text = query_of(text)
        elif (answer := _description_of_function(self._functions, text) or self._about_query(text)) is not None:
            return answer
        statements = statements_of(text)
        if statements is not None:
            trees = [self._planned(each) or (scope_of(self._functions, each), each.tree) for each in statements]
            return run_set(self._shared, trees, self._stages)
        found = self._planned(text)
        if found is None:
            return self._of_windows(text) or self._of_scalar_calls(text) or self._unchanged(text)
        scope, tree = found
        if isinstance(tree, exp.Create) and tree.kind == "VIEW" and tree.expression is not None:
            return _create_view(scope, tree)
        return without_time(scope.run(tree, whole=True))

    def _about_query(self, text: Text) -> DataFrame | None:
        """The answer to DESCRIBE QUERY of a query that is planned here; None for any other statement.

        Raises PlanError for EXPLAIN of such a query.
        """
        word = text.tokens[0].text.upper() if text.tokens else ""
        begin = next((index for index, token in enumerate(text.tokens[:3]) if token.token_type in BEGINNINGS), 0)
        if word not in ("EXPLAIN", "DESC", "DESCRIBE") or not begin:
            return None
        query = replace(text, part=text.tokens[begin:])
        if self._planned(query) is None:
            return None
        if word == "EXPLAIN":
            raise PlanError("EXPLAIN: Spark cannot read this query, which is planned here: call remote.explain(query)")
        fields = self.frame(query).schema.fields
        rows = [(each.name, each.dataType.simpleString(), each.metadata.get("comment")) for each in fields]
        return self._functions.spark.createDataFrame(rows, "col_name string, data_type string, comment string")

    def _planned(self, text: Text) -> tuple[Scope, Node] | None:
        """Rewrite a statement that calls something else than scalar functions; None if it calls nothing else."""
        functions = self._functions
        for name in functions.of_kind(FunctionKind.SCALAR, text.called):
            functions.register(name)
        kinds = {functions.kind(name) for name in text.called}
        called = [found for name in text.called if (found := TABLE_FUNCTIONS.get(name.upper())) is not None]
        reads_all = has_window_calls(text.tokens) or any(each.reads_all for each in called)
        is_planned = FunctionKind.AGGREGATE in kinds or reads_all or bool(called)
        if not is_planned and FunctionKind.PROCESS not in kinds and not may_have_lateral_calls(text.tokens, functions):
            return None
        if isinstance(text.args, (list, tuple)) and text.args:  # by position
            raise PlanError("this query is run in pieces: give its parameters names, as in :limit")
        scope = scope_of(functions, text, self._shared, is_planned=is_planned, reads_all=reads_all)
        tree = rewritten(Trees.PLANNED, scope, text.tree)
        if not scope.is_planned:
            return None  # none of the calls is one in FROM
        self._explain(scope.stages)
        return scope, tree

    def _of_windows(self, text: Text) -> DataFrame | None:
        """The DataFrame of a query over a view of a stream's windows; None if Spark can run the text unchanged."""
        if WINDOW_START not in text.sql.lower() or isinstance(text.args, (list, tuple)):
            return None
        scope = scope_of(self._functions, text, is_planned=True)
        try:
            tree = text.tree
            planned = rewritten(Trees.WINDOWS, scope, tree)
        except (PlanError, PySparkException):
            return None  # Spark runs the text, or reports the error
        self._explain(scope.stages)
        return None if planned == tree or not isinstance(planned, exp.Query) else without_time(scope.run(planned))

    def _of_scalar_calls(self, text: Text) -> DataFrame | None:
        """The DataFrame of a text that would repeat calls unnecessarily; None if Spark can run the text unchanged."""
        if not any(self._functions.is_remote_scalar(shown(name)) for name in text.called):
            return None
        try:
            tree = text.tree
        except PlanError:
            return None  # Spark runs the text, or reports the error
        as_written = isinstance(text.args, (list, tuple)) or not isinstance(tree, (exp.Query, exp.Insert, exp.Create))
        scope = scope_of(self._functions, text).as_is()
        ready = rewritten(Trees.CHECKED if as_written else Trees.SPARK, scope, tree)
        ready = _with_shown_columns(scope, ready) if isinstance(ready, exp.Create | exp.Cache) else ready
        self._explain(scope.stages)
        return None if ready is tree else scope.run(ready)

    def _unchanged(self, text: Text) -> DataFrame:
        if text.part:
            return scope_of(self._functions, text).as_is().run(text.tree)
        return self._functions.run(text.sql, text, text.fields)

    def _explain(self, stages: Sequence[str]) -> None:
        if self._stages is not None:
            self._stages += stages


def _with_shown_columns(scope: Scope, create: exp.Create | exp.Cache) -> Node:
    """The statement with names for the columns that Spark would name after calls of a version or without arguments."""
    query = query_in(create)
    if query is None or isinstance(create.this, exp.Schema):
        return create
    names = scope.run(query).columns
    if not any("@" in name or "()" in name for name in names):
        return create
    changed = create.copy()
    columns = [exp.to_identifier(name, quoted=True) for name in names]
    alias = exp.TableAlias(this=exp.to_identifier(scope.hidden("query")), columns=columns)
    changed.set("expression", exp.select("*").from_(exp.Subquery(this=query.copy(), alias=alias)))
    return changed


def _create_view(scope: Scope, create: Node) -> DataFrame:
    """Create a temporary view of a DataFrame, which a statement of Spark cannot do."""
    kinds = create.args["properties"].expressions if create.args.get("properties") else []
    if not any(isinstance(kind, exp.TemporaryProperty) for kind in kinds):
        raise error_at(create, "a view with remote aggregates must be temporary: CREATE TEMPORARY VIEW")
    everywhere = any(isinstance(kind, exp.GlobalProperty) for kind in kinds)
    frame = with_shown_names(without_time(scope.run(create.expression)))
    target = create.this
    if isinstance(target, exp.Schema):
        frame = frame.toDF(*(each.name for each in target.expressions))
        target = target.this
    name = quoted(target.name)
    if create.args.get("exists") and scope.spark.catalog.tableExists(name):
        return scope.spark.createDataFrame([], "")
    if everywhere:
        make = frame.createOrReplaceGlobalTempView if create.args.get("replace") else frame.createGlobalTempView
    else:
        make = frame.createOrReplaceTempView if create.args.get("replace") else frame.createTempView
    make(name)
    return scope.spark.createDataFrame([], "")


def _description_of_function(functions: SqlFunctions, text: Text) -> DataFrame | None:
    """The answer to DESCRIBE FUNCTION [EXTENDED] of a remote function; None for any other text.

    Spark knows only that the function is implemented in Python.
    """
    *words, name = [token.text for token in text.tokens] or [""]
    verb, *rest = [word.upper() for word in words] or [""]
    extended = rest == ["FUNCTION", "EXTENDED"]
    if verb not in ("DESCRIBE", "DESC") or not (extended or rest == ["FUNCTION"]) or functions.kind(name) is None:
        return None
    lines = _description(functions.spec(name), extended=extended)
    return functions.spark.createDataFrame([(line,) for line in lines], "function_desc string")


def _description(spec: FunctionSpec, *, extended: bool) -> list[str]:
    kind = f"{spec.kind}, returns rows: call it in FROM" if spec.returns_rows else str(spec.kind)
    lines = [f"Function: {spec.key}", f"Kind: {kind}", f"Usage: {spec.signature}"]
    if spec.description:
        lines.append(f"Description: {inspect.cleandoc(spec.description)}")
    if extended:
        lines += [f"Deterministic: {str(spec.deterministic).lower()}", f"Nulls: {spec.nulls}"]
        lines += [f"Owner: {spec.owner}"] if spec.owner else []
        lines += [f"Option: {name}={value}" for name, value in spec.options.items()]
    return lines
