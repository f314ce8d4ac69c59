"""Plans what dead letters contain, and reads them back as the rows that they contain."""

import os
import re
from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from spark_client.base.errors import PlanError
from spark_client.base.grouped import grouped
from spark_client.base.identifiers import Identifiers
from spark_client.base.targets import require_no_credentials
from spark_client.base.types import spark_type
from spark_client.executor.scalar.dead_letter import LETTER_COLUMNS

__all__ = ["letter_schema", "replayed"]

RUNS_SHOWN = 10
_RUN = re.compile(r"[0-9a-f-]+")
_CONNECT_WORKER = "SPARK_CONNECT_LOCAL_URL"
"""The variable of the environment that Spark sets where it runs functions of foreachBatch on Spark Connect."""


def letter_schema(
    names: Sequence[str], fields: Sequence[StructField], identifiers: Identifiers,
    micro_batch: tuple[str, int] | None,
) -> str:  # fmt: skip
    """Spark's schema of the dead letters of input rows with these columns, as JSON. Raises PlanError."""
    if micro_batch is None and _CONNECT_WORKER in os.environ:
        raise PlanError(
            "dead letters in a function of foreachBatch on Spark Connect: a micro-batch that runs again would "
            "write its letters twice, because Spark does not say there which query it belongs to. Write "
            'connect(..., micro_batch=("a name of the query", number)), with the number that the function gets'
        )
    own = [StructField(field.name, spark_type(field.type)) for field in LETTER_COLUMNS]
    taken = {identifiers.key(field.name) for field in own}
    for name in names:
        if identifiers.key(name) in taken:
            raise PlanError(
                f"column {name!r}: a dead letter has a column of that name besides those of the input. "
                "If the input is dead letters, read them by `replay` of the session; otherwise rename the column"
            )
    given = [StructField(name, field.dataType) for name, field in zip(names, fields, strict=False)]
    return StructType([*given, *own]).json()


def replayed(spark: SparkSession, path: str, run: str | None) -> DataFrame:
    """The rows of a run, without the columns that dead letters add. Raises PlanError for a bad path or run."""
    require_no_credentials(path, "replay")
    if run is None:
        run = _only_run(_letters(spark, path, "*"), path)
    elif not _RUN.fullmatch(run):
        raise PlanError(f"run {run!r}: expected a value of the column `_run` of dead letters, or the id of a stream")
    return _letters(spark, path, run).drop(*LETTER_COLUMNS.names)


def _letters(spark: SparkSession, path: str, run: str) -> DataFrame:
    try:
        letters = spark.read.option("pathGlobFilter", f"part-{run}-*.parquet").parquet(path)
        missing = set(LETTER_COLUMNS.names) - set(letters.columns)
    except AnalysisException as error:
        whose = "dead letters" if run == "*" else f"dead letters of run {run}"
        raise PlanError(f"there are no {whose} in {path!r}") from error
    if missing:
        raise PlanError(f"the files in {path!r} are not dead letters: they lack {', '.join(sorted(missing))}")
    return letters


def _only_run(letters: DataFrame, path: str) -> str:
    told = [F.max("_time").cast("string").alias("last"), F.count(F.lit(1)).alias("rows")]
    found = grouped(letters, [F.col("_run").alias("run")], told)
    runs = found.orderBy(F.desc("last")).limit(RUNS_SHOWN + 1).collect()
    if len(runs) == 1:
        return str(runs[0].run)
    shown = "".join(f"\n  {row.run}: {row.rows} letters, the last at {row.last}" for row in runs[:RUNS_SHOWN])
    more = "\n  ..." if len(runs) > RUNS_SHOWN else ""
    raise PlanError(f"{path!r} has letters of several runs; pass one as `run`, the latest is first:{shown}{more}")
