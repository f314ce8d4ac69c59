"""Jobs of Spark that ask models: calls that the order of conditions and a cascade save."""

import json
import random

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.model_server import model_server
from benchmarks.results import Results
from benchmarks.spark import TASKS
from spark_client import RemoteFunction, connect
from udf_models.testing import Reply, Request, ScriptedService

__all__ = ["measure_cascade", "measure_conditions"]

SAMPLE = 50
"""Rows on which conditions are measured."""
CASCADE_SAMPLE = 400
"""Rows on which both models of a cascade are asked."""
TARGET = 0.95
LABELS = ["account", "delivery"]


def measure_conditions(results: Results, quick: bool, spark: SparkSession) -> None:
    """Three conditions on answers of models, of which the text has the one that drops most rows last."""
    rows = 200 if quick else 5_000
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


def measure_cascade(results: Results, quick: bool, spark: SparkSession) -> None:
    """A cheap model that is not confident of a quarter of the texts, and wrong about half of these."""
    rows = 600 if quick else 5_000
    labels = F.array(*map(F.lit, LABELS))
    texts = spark.range(0, rows, 1, TASKS).select("id", F.format_string("text %d", "id").alias("text"))

    def label(number: int) -> str:
        return LABELS[number % len(LABELS)]

    def answer(request: Request) -> Reply:
        number = int(request.prompt.split()[-1])
        vague = random.Random(number).random() < 0.25
        if request.body["model"] == "large" or not vague:
            return Reply(text=json.dumps({"label": label(number)}), probability=0.97)
        return Reply(text=json.dumps({"label": random.Random(-number).choice(LABELS)}), probability=0.4)

    with ScriptedService(answer) as service:
        functions = 'functions = ["classify_with_confidence"]'
        large = f'[models.large]\nurl = "{service.url}"\nmodel = "large"\nfunctions = ["classify"]\n'
        with model_server(service.url, more=f"{functions}\n{large}") as server:
            remote = connect(spark, server.target)
            cheap, dear = remote.function("classify_with_confidence_small"), remote.function("classify_large")
            assert isinstance(cheap, RemoteFunction) and isinstance(dear, RemoteFunction)
            sample = texts.orderBy(F.rand(8)).limit(CASCADE_SAMPLE).select("text", labels.alias("labels"))
            cascade = remote.cascade(cheap, dear, target=TARGET, sample=sample)
            # Without a cache all rows count, also those of the sample.
            asked = len(service.requests)
            spark.conf.set("spark.remoteudf.async-scalar.cache-ttl", "0 s")
            found = texts.select("id", cascade("text", labels).alias("label")).collect()
            spark.conf.unset("spark.remoteudf.async-scalar.cache-ttl")
            models = [request.body["model"] for request in service.requests[asked:]]
    right = sum(row.label == label(row.id) for row in found) / rows
    note = f"{rows:,} rows; the cheap model is not confident of 25 %, and wrong about half of these; target {TARGET}"
    results.add("cascade_dear_calls_share", models.count("large") / rows, f"{note}, by a sample of {CASCADE_SAMPLE}")
    results.add("cascade_right_share", right, "rows of the same cascade with the label of the dear model")
