"""The functions of the suite of planning: one per kind. The server loads this plugin by its file name."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import udf_server as udf


@udf.scalar(vectorized=True)
def plus_one(x: pa.Int64Array) -> pa.Int64Array:
    """Adds one."""
    return pc.add(x, 1)


class Total(udf.VectorizedAggregateFunction):
    """The sum of a column."""

    name, parameters, returns, accumulator = "total", "x bigint", "bigint", "bigint"

    def supports_merging(self) -> bool:
        return True

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        values = bundle.columns[0].to_numpy(zero_copy_only=False)
        before = bundle.accumulators.fill_null(0).to_numpy(zero_copy_only=False)
        return pa.array(bundle.reduce_rows(np.add, values) + bundle.reduce_accumulators(np.add, before), pa.int64())

    def get_values(self, accumulators: pa.Array) -> pa.Array:
        return accumulators


class Repeated(udf.ProcessTableFunction):
    """A word, several times."""

    name, returns = "repeated", "word string"

    def eval(self, word: str, times: int) -> Iterator[tuple[str]]:
        for _ in range(times):
            yield (word,)
