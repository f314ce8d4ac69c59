"""Jobs of Spark that ask models: calls that are saved by the order of conditions."""

import random

from pyspark.sql import SparkSession

from benchmarks.model_server import model_server
from benchmarks.results import Results
from benchmarks.spark import TASKS
from spark_client import connect
from udf_models.testing import Request, ScriptedService

__all__ = ["measure_conditions"]

SAMPLE = 50
"""Rows on which conditions are measured."""


def measure_conditions(results: Results, quick: bool, spark: SparkSession) -> None:
    """Three conditions on answers of models, of which the text has the one that drops most rows last."""
    rows = 500 if quick else 5_000
    spark.range(0, rows, 1, TASKS).createOrReplaceTempView("tickets")
    passes = {"is it polite?": 90, "is it about money?": 60, "is it urgent?": 5}
    condition = " AND ".join(
        f"complete_small(concat('ticket ', id), '{question}') = 'yes'" for question in passes
    )  # fmt: skip

    def answer(request: Request) -> str:
        question, number = request.body["messages"][0]["content"], int(request.prompt.split()[-1])
        # Shares that do not depend on each other, in every part of the rows.
        return "yes" if random.Random(f"{question} {number}").random() * 100 < passes[question] else "no"

    calls, found = {}, {}
    for name, sample in {"written": 0, "ordered": SAMPLE}.items():
        with ScriptedService(answer) as service, model_server(service.url) as server:
            remote = connect(spark, server.target, condition_sample=sample)
            frame = remote.sql(f"SELECT id FROM tickets WHERE {condition}")
            found[name] = sorted(row.id for row in frame.collect())
            calls[name] = len(service.requests)
    assert found["written"] == found["ordered"]
    note = (
        f"{rows:,} rows; 90, 60 and 5 % pass, the worst order in the text; with the calls for {SAMPLE} rows of sample"
    )
    results.add("three_predicates_calls_saved", calls["written"] / calls["ordered"], note)
