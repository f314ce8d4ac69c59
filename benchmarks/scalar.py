"""The suite of scalar functions."""

from benchmarks.in_spark import measure_look_ups, measure_stragglers, measure_vectorized
from benchmarks.memory import measure_memory
from benchmarks.results import Results
from benchmarks.rows import measure_dispatch, measure_neighbours, measure_waiting
from benchmarks.server import server_process
from benchmarks.several_calls import measure_several_calls
from benchmarks.spark import local_spark

__all__ = ["run_scalar"]


def run_scalar(results: Results, quick: bool) -> None:
    """Runs every measurement of scalar functions, those without Spark first."""
    measure_waiting(results, quick)
    measure_dispatch(results, quick)
    measure_neighbours(results, quick)
    with local_spark() as spark, server_process() as server:
        measure_vectorized(results, quick, spark, server)
        measure_look_ups(results, quick, spark, server)
        measure_stragglers(results, quick, spark, server)
        measure_several_calls(results, quick, spark, server)
        measure_memory(results, quick, spark, server)
