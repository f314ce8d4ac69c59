"""`remote_parquet('path', ...)` in FROM: Parquet files as `RemoteSession.read_parquet` reads them."""

from pyspark.sql import DataFrame
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.parquet.reading import plan_scan
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.table_calls import put_in_place
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.writers import canonical

__all__ = ["put_parquet"]

NAME = "remote_parquet"


def put_parquet(scope: Scope, node: Node, call: exp.Anonymous) -> None:
    """Replace a call by its DataFrame."""
    frame = _frame(scope, call)
    scope.stages.append(f"{NAME}: workers read columns for remote aggregates, Spark reads for all else")
    put_in_place(scope, node, frame, NAME)


def _frame(scope: Scope, call: exp.Anonymous) -> DataFrame:
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
            condition = str(value.this)
    if not paths:
        raise PlanError(f"{NAME} takes at least one path")
    return plan_scan(scope.spark, paths, condition)
