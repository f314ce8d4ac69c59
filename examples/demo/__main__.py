"""The demo: a PySpark job that looks things up over HTTP and aggregates, in DataFrames and in SQL, timed.

    make demo
    make demo DEMO_INPUT=mine.csv [DEMO_COLUMN=city] [DEMO_ROWS=1000]

or, where the project and its plugins are installed, `python -m examples.demo`.
"""

import os
import sys
import tempfile
import time
from dataclasses import astuple
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from examples.demo import job
from examples.demo.comparison import IN_FLIGHT, TASKS, Timing, compare
from examples.demo.everyday import pay_once, share_a_model
from examples.demo.job_input import InputError, JobInput, read_input
from examples.demo.lookup_service import ANSWER_SECONDS
from examples.demo.server_metrics import Scrape
from examples.demo.services import LookupProcess
from examples.demo.tables import table
from examples.session import local_session
from remote_udf.errors import RemoteUdfError
from remote_udf.functions import FunctionKind
from remote_udf.types import spelled
from spark_client import RemoteSession, connect

FEW = 5


def main() -> None:
    """Runs the demo; if the input is unusable, prints one line and exits with status 1."""
    began = time.perf_counter()
    say(f"Starting Spark with {TASKS} local tasks")
    spark = local_session(TASKS)
    try:
        given = read_input(spark)
        say("Starting the server of the functions, and the look-up service")
        with LookupProcess() as service:
            # The plugin udf_http in the embedded server reads it.
            os.environ["UDF_HTTP_BASE_URL"] = service.base_url
            run(spark, connect(spark), service, given)
    except (InputError, RemoteUdfError) as error:
        sys.exit(f"demo: {error}")
    finally:
        spark.stop()
    say(f"\nDone in {time.perf_counter() - began:.0f} s.")


def run(spark: SparkSession, remote: RemoteSession, service: LookupProcess, given: JobInput) -> None:
    """Runs the job, part by part."""
    title("Functions of the server")
    show_functions(remote)

    frame = given.frame.persist()
    title(f"{frame.count():,} lookups, three ways")
    say(f"  Input: {given.title}, {given.chosen}.")
    say(f"  The service takes {1e3 * ANSWER_SECONDS:.0f} ms for an answer. {TASKS} Spark tasks ask it.\n")
    timings, same = compare(remote, frame, service)
    show_timings(timings)
    say(f"\n  A row takes no less time than before, but {IN_FLIGHT} rows of a task are in flight at once.")
    say(f"  {'All three gave the same answers.' if same else 'THE ANSWERS DIFFER.'}")

    title("Farthest from San Francisco: calls of calls, in a DataFrame")
    heads = ["code", "airport", "city", "state", "km", "bearing", "geohash"]
    say(table(heads, job.farthest(remote, frame, FEW).collect()))

    title("By state: the same functions in spark.sql")
    say(table(["state", "rows", "nearest km", "farthest km"], job.states(spark, remote, frame, FEW).collect()))

    if not given.is_users:
        title("Hourly temperatures of San Francisco (F), Seattle's looked up, unordered")
        heads = ["month", "hours", "found", "San Francisco", "Seattle", "hours Seattle was warmer"]
        say(table(heads, job.hours(spark, remote).collect()))

        title("The same hours by month: remote aggregates beside Spark's avg, in one pass")
        heads = ["month", "hours", "Spark's avg", "average", "median", "median, 11 to 16 h", "highest"]
        say(table(heads, job.months(spark, remote).collect()))

        title("When it was warmest: ewm_mean over all hours up to each, the highest of a month")
        say(table(["month", "hour", "mean"], job.warmest(spark, remote, FEW).collect()))

    if not given.is_users:
        show_everyday(spark, remote, service, frame)

    title("What the server counted")
    assert remote.embedded is not None
    show_metrics(Scrape(remote.embedded.metrics_url))
    say("\n  A row of an aggregate function is a segment: the rows of one key in one bundle.")


def show_everyday(spark: SparkSession, remote: RemoteSession, service: LookupProcess, frame: DataFrame) -> None:
    """Prints what a job pays that was killed, and the calls of a model that tasks share."""
    title("Pay once: a job of its own is killed half-way, and run again with live progress")
    with tempfile.TemporaryDirectory() as folder:
        runs = pay_once(remote, frame.select("path"), service, Path(folder))
    say(table(["run", "rows", "answers kept", "requests"], [astuple(run) for run in runs]))
    say(f"\n  {sum(run.requests for run in runs):,} requests for {frame.count():,} rows: nothing was paid twice.")

    title("One model for all tasks: which kind of airport is it, by its name?")
    names = job.names(spark)
    shared, same = share_a_model(spark, names)
    heads = ["way", "rows", "calls", "rows of a call", "seconds"]
    say(table(heads, [(way.way, way.rows, way.calls, way.rows / way.calls, way.seconds) for way in shared]))
    say("\n  Rows of all tasks meet in common calls.")
    say(f"  {'Both gave the same answers.' if same else 'THE ANSWERS DIFFER.'}")


def show_functions(remote: RemoteSession) -> None:
    """Prints the functions that can be called."""
    rows = []
    for spec in remote.functions():
        arguments = ", ".join(parameter.name for parameter in spec.parameters)
        execution = str(spec.execution) if spec.kind is FunctionKind.SCALAR else str(spec.kind)
        rows.append((spec.name, execution, arguments, spelled(spec.result)))
    say(table(["function", "execution", "arguments", "result"], rows))


def show_timings(timings: list[Timing]) -> None:
    """Prints the time of each way, its time per row, and the most requests that the service saw at once."""
    slowest = timings[0].seconds
    rows = [
        (t.way, t.seconds, t.rows / t.seconds, slowest / t.seconds, t.row_milliseconds, t.most_at_once) for t in timings
    ]
    say(table(["way", "seconds", "rows/s", "times as fast", "ms of a row", "requests at once"], rows))


def show_metrics(scrape: Scrape) -> None:
    """Prints the rows and times of every function, over the whole demo."""
    rows = []
    for function in scrape.functions():
        of = scrape.statistics(function)
        times = (of.mean_milliseconds, of.slowest_milliseconds)
        rows.append((function, of.rows_ok, of.rows_failed, of.retries, of.batches, *times))
    say(table(["function", "rows ok", "failed", "retries", "batches", "mean ms", "99 % within ms"], rows))


def title(text: str) -> None:
    say(f"\n{text}\n")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
