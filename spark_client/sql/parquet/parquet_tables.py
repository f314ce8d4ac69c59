"""`remote_parquet('path', ...)` in FROM: Parquet files as `RemoteSession.read_parquet` reads them."""

from pyspark.sql import DataFrame
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.parquet.reading import plan_scan
from spark_client.sql.rows.conditions import Conditions
from spark_client.sql.rows.table_calls import call_of_relation, put_in_place
from spark_client.sql.rows.workspace import Workspace
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import in_place, place_of
from spark_client.sql.text.writers import canonical

__all__ = ["NAME", "put_parquet"]

NAME = "remote_parquet"


def put_parquet(workspace: Workspace, tree: Node) -> Node:
    """The tree with DataFrames in place of the calls. Raises PlanError with the position in the text."""
    holder = exp.Tuple(expressions=[tree.copy()])
    for node in list(holder.walk()):
        call = call_of_relation(node)
        if call is not None and call.name.lower() == NAME:
            try:
                frame = _frame(workspace, call)
            except PlanError as error:
                raise in_place(place_of(call), error) from None
            workspace.stages.append(f"{NAME}: workers read columns for remote aggregates, Spark reads for all else")
            put_in_place(workspace, node, frame, NAME)
    return holder.expressions[0]


def _frame(workspace: Workspace, call: exp.Anonymous) -> DataFrame:
    paths, condition = [], None
    for argument in call.expressions:
        value = argument.expression if isinstance(argument, exp.Kwarg) else argument
        if not isinstance(value, exp.Literal) or not value.is_string:
            raise PlanError(f"{NAME} takes paths and filter => as texts, not {canonical(argument)}")
        if value is argument:
            paths.append(str(value.this))
        elif argument.this.name.lower() != "filter":
            raise PlanError(f"{NAME} has no parameter {argument.this.name}, only filter")
        elif condition is not None:
            raise PlanError(f"{NAME} takes one filter; join the conditions by AND")
        else:
            condition = Conditions(workspace.spark, str(value.this))
    if not paths:
        raise PlanError(f"{NAME} takes at least one path")
    return plan_scan(workspace.spark, paths, condition)
