"""The functions that are called over Parquet files. The server loads this plugin by its file name."""

import pyarrow as pa

import udf_server as udf
from benchmarks import aggregate_functions


@udf.scalar(vectorized=True)
def first_of_two(a: pa.Int64Array, b: pa.Int64Array) -> pa.Int64Array:
    """Takes two columns and returns one unchanged."""
    return a


@udf.scalar(vectorized=True)
def same_text(s: pa.StringArray) -> pa.StringArray:
    """Returns its argument."""
    return s


class VectorizedAverage(aggregate_functions.VectorizedAverage):
    """The average of the suite of aggregates; a plugin has only the functions that it defines itself."""
