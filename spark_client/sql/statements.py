"""What `RemoteSession.sql` does: runs a text, with its remote functions, as Spark would without them."""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from remote_udf.functions import FunctionKind, FunctionSpec
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import quoted
from spark_client.functions.aggregate import AggregateExpression
from spark_client.sql.empty_calls import with_shown_names, without_empty_calls
from spark_client.sql.joined_calls import without_derived_calls
from spark_client.sql.names import FunctionNames
from spark_client.sql.parsing import Text, called_names, error_at, parse
from spark_client.sql.process_functions import without_process_calls
from spark_client.sql.rewriting import Rewriting
from spark_client.sql.shared_calls import SharedCalls
from spark_client.sql.single_calls import SingleCalls
from spark_client.sql.statement_sets import run_set, statements_of
from spark_client.sql.stream_times import without_time
from spark_client.sql.window_functions import without_window_calls
from spark_client.sql.workspace import Workspace
from spark_client.windows.columns import WINDOW_START

__all__ = ["run_text"]


def run_text(
    spark: SparkSession, names: FunctionNames, text: Text, call: Callable[..., AggregateExpression],
    register: Callable[[str], object], process: Callable[..., DataFrame] | None = None,
    spec_of: Callable[[str], FunctionSpec] | None = None, stages: list[str] | None = None,
    once: Callable[[str], str | None] = lambda _: None, empty: Callable[[str], str | None] = lambda _: None,
) -> DataFrame:  # fmt: skip
    """The DataFrame of a query, or what a statement returns. `empty` is as in `without_empty_calls`.

    A text without remote aggregates and table functions goes to Spark as it is. `register` makes a remote
    scalar function known to Spark by its name; `call` is as in Rewriting; `process` calls a process table function.
    What is made of the text is added to `stages`; `once` is as in SingleCalls.
    Raises PlanError, and whatever Spark raises.
    """
    ready = without_empty_calls(text, lambda name: empty(name) if names.is_remote_scalar(name) else None)
    frame = _run(spark, names, ready, call, register, process, spec_of, stages, once)
    return frame if ready is text else with_shown_names(frame)


def _run(
    spark: SparkSession, names: FunctionNames, text: Text, call: Callable[..., AggregateExpression],
    register: Callable[[str], object], process: Callable[..., DataFrame] | None,
    spec_of: Callable[[str], FunctionSpec] | None, stages: list[str] | None, once: Callable[[str], str | None],
) -> DataFrame:  # fmt: skip
    shared = SharedCalls()
    single = SingleCalls(names, functools.cache(once))

    def prepared(one: Text) -> tuple[Workspace, Any] | None:
        """The statement rewritten; None for one without remote aggregates and table functions."""
        called = list(called_names(one.readable()))
        for name in names.of_kind(FunctionKind.SCALAR, called):
            register(name)
        one, windows = without_window_calls(one)
        functions = None
        if names.of_kind(FunctionKind.PROCESS, called) and process is not None and spec_of is not None:
            one, functions = without_process_calls(one, names, process, spec_of, shared)
        if not names.of_kind(FunctionKind.AGGREGATE, called) and functions is None and not windows:
            return None
        if isinstance(text.args, (list, tuple)) and text.args:
            raise PlanError("a query with remote aggregates is run in pieces: give its parameters names, as in :limit")
        workspace = Workspace(spark, one, single)
        rewriting = Rewriting(workspace, names, call, windows)
        tree = parse(one)
        if functions is not None:
            tree = functions.rewritten(workspace, tree, rewriting.table)
        rewritten = rewriting.statement(tree)
        if stages is not None:
            called_tables = functions.names() if functions is not None else []
            stages.extend(f"{name}: a process table function on the server" for name in called_tables)
            stages.extend(workspace.stages)
        return workspace, rewritten

    statements = statements_of(text)
    if statements is not None:
        trees = [prepared(each) or (Workspace(spark, each, single), parse(each)) for each in statements]
        return run_set(names, shared, trees, stages)
    found = prepared(text)
    if found is None:
        workspace = Workspace(spark, text, single)
        return (
            _of_windows(workspace, names, text, call, stages)
            or _of_scalar_calls(workspace, names, text, single)
            or spark.sql(text.sql, args=text.args, **text.fields)
        )
    workspace, rewritten = found
    if isinstance(rewritten, exp.Create) and rewritten.kind == "VIEW" and rewritten.expression is not None:
        return _create_view(workspace, rewritten)
    return without_time(workspace.run(rewritten))


def _of_windows(
    workspace: Workspace, names: FunctionNames, text: Text, call: Callable[..., AggregateExpression],
    stages: list[str] | None,
) -> DataFrame | None:  # fmt: skip
    """The DataFrame of a query over a view of a stream's windows; None if Spark can have the text as it is."""
    if WINDOW_START not in text.sql.lower() or isinstance(text.args, (list, tuple)):
        return None
    try:
        tree = parse(text)
        rewritten = Rewriting(workspace, names, call).statement(tree)
    except (PlanError, PySparkException):
        return None  # Spark says what is wrong, or knows better
    if stages is not None:
        stages += workspace.stages
    if rewritten == tree or not isinstance(rewritten, exp.Query):
        return None
    return without_time(workspace.run(rewritten))


def _of_scalar_calls(workspace: Workspace, names: FunctionNames, text: Text, single: SingleCalls) -> DataFrame | None:
    """The DataFrame of a text whose calls would be made more often than needed; None if Spark can have it as it is."""
    called = Counter(name.casefold() for name in called_names(text.readable()) if names.is_remote_scalar(name))
    if isinstance(text.args, (list, tuple)) or not called:
        return None
    try:
        tree = parse(text)
    except PlanError:
        return None  # Spark says what is wrong, or knows better
    if not isinstance(tree, (exp.Query, exp.Insert, exp.Create)):
        return None
    once = single(workspace.as_is(), tree, ()) if max(called.values()) > 1 else tree
    rewritten = once if _is_view(tree) else without_derived_calls(workspace.as_is(), names, once)
    return None if rewritten is tree else workspace.as_is().run(rewritten)


def _is_view(tree: Any) -> bool:
    return isinstance(tree, exp.Create) and tree.kind == "VIEW"


def _create_view(workspace: Workspace, create: Any) -> DataFrame:
    """A temporary view of a DataFrame, which Spark's own statement cannot make."""
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
