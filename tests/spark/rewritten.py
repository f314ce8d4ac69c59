"""The dialect's rewriting of a text that `remote.sql` would leave to Spark, and Spark's plan of it."""

import contextlib
import io
import re
from typing import Never

import sqlglot
from pyspark.sql import DataFrame, SparkSession

from spark_client.functions.directory import Functions
from spark_client.sql.passes import scope_of
from spark_client.sql.rewriting import with_remote_queries
from spark_client.sql.rows.functions import SqlFunctions, SqlSession
from spark_client.sql.text.dialect import RemoteSpark
from spark_client.sql.text.parsing import Text

__all__ = ["plan_of", "rewritten"]

_NUMBERS = re.compile(r"(#|CTERelation(?:Def|Ref) |plan_id=|UnionLoop(?:Ref)? )(\d+)")


def rewritten(spark: SparkSession, sql: str) -> DataFrame:
    """Parses the query, processes it like one with remote functions, writes all of it from its parts and runs it."""
    session = SqlSession(spark, Functions([]), _refused, _refused)
    scope = scope_of(SqlFunctions(session), Text(sql, None, {}))
    # A tree of `text` would be written as the text.
    tree = sqlglot.parse_one(sql, dialect=RemoteSpark)
    return scope.run(with_remote_queries(scope, tree))


def _refused(name: str, *_: object, **__: object) -> Never:
    raise AssertionError(f"{name!r} is no remote function: there are none")


def plan_of(frame: DataFrame) -> str:
    """Returns Spark's analyzed plan with its numbers renumbered from the first."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.explain("extended")
    _, _, after = printed.getvalue().partition("== Analyzed Logical Plan ==")
    plan, _, _ = after.partition("== Optimized Logical Plan ==")
    seen: dict[tuple[str, str], str] = {}

    def counted(found: re.Match[str]) -> str:
        return found[1] + seen.setdefault((found[1][:3], found[2]), str(len(seen)))

    return _NUMBERS.sub(counted, plan)
