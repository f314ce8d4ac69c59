"""Reads Spark's description of the analyzed plan of a DataFrame, for what nothing in its columns tells."""

import uuid

from pyspark.sql import DataFrame

from spark_client.base.identifiers import hidden, quoted

__all__ = ["analyzed_plan"]


def analyzed_plan(frame: DataFrame) -> list[str]:
    """The lines of the analyzed plan, which are indented by depth. A tilde marks operators over streams."""
    spark, view = frame.sparkSession, hidden(f"plan_{uuid.uuid4().hex}")
    frame.createTempView(view)
    try:
        (row,) = spark.sql(f"EXPLAIN EXTENDED SELECT * FROM {quoted(view)}").collect()  # noqa: S608
    finally:
        spark.catalog.dropTempView(view)
    text: str = row[0]
    return text.partition("== Analyzed Logical Plan ==")[2].partition("\n== ")[0].splitlines()
