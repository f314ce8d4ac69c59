"""Reads Spark's description of the plans of a DataFrame, for what nothing in its columns tells."""

import uuid

from pyspark.sql import DataFrame

from spark_client.base.identifiers import hidden, quoted

__all__ = ["analyzed_plan", "cost_plan"]


def analyzed_plan(frame: DataFrame) -> list[str]:
    """The lines of the analyzed plan, which are indented by depth. A tilde marks operators over streams."""
    return _explained(frame, "EXTENDED").partition("== Analyzed Logical Plan ==")[2].partition("\n== ")[0].splitlines()


def cost_plan(frame: DataFrame) -> str:
    """The optimized plan with the statistics of its nodes, and the physical plan."""
    return _explained(frame, "COST")


def _explained(frame: DataFrame, mode: str) -> str:
    """`DataFrame.explain` prints, and standard output belongs to the whole process. It would also fix Spark's plan.

    Then Spark would not use a later cache of what the frame reads.
    """
    spark, view = frame.sparkSession, hidden(f"plan_{uuid.uuid4().hex}")
    frame.createTempView(view)
    try:
        (row,) = spark.sql(f"EXPLAIN {mode} SELECT * FROM {quoted(view)}", {}).collect()  # noqa: S608
    finally:
        spark.catalog.dropTempView(view)
    text: str = row[0]
    return text
