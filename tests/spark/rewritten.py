"""What the dialect of `remote.sql` makes of a text that it would leave to Spark, and Spark's plan of it."""

import contextlib
import io
import re
from typing import Never

from pyspark.sql import DataFrame, SparkSession

from spark_client.functions.directory import Functions
from spark_client.sql.functions import SqlFunctions
from spark_client.sql.parsing import Text
from spark_client.sql.rewriting import Rewriting
from spark_client.sql.single_calls import SingleCalls
from spark_client.sql.workspace import Workspace

__all__ = ["plan_of", "rewritten"]

_NUMBERS = re.compile(r"(#|CTERelation(?:Def|Ref) |plan_id=|UnionLoop(?:Ref)? )(\d+)")


def rewritten(spark: SparkSession, sql: str) -> DataFrame:
    """The query parsed, gone through as one with remote functions, written and run."""
    text, functions = Text(sql, None, {}), SqlFunctions(spark, Functions([]), {}, _refused, _refused)
    workspace = Workspace(functions, text, SingleCalls(functions))
    return workspace.run(Rewriting(workspace).statement(text.tree))


def _refused(name: str, *_: object, **__: object) -> Never:
    raise AssertionError(f"{name!r} is no remote function: there are none")


def plan_of(frame: DataFrame) -> str:
    """Spark's analyzed plan, its numbers counted anew from the first."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.explain("extended")
    _, _, after = printed.getvalue().partition("== Analyzed Logical Plan ==")
    plan, _, _ = after.partition("== Optimized Logical Plan ==")
    seen: dict[tuple[str, str], str] = {}

    def counted(found: re.Match[str]) -> str:
        return found[1] + seen.setdefault((found[1][:3], found[2]), str(len(seen)))

    return _NUMBERS.sub(counted, plan)
