"""The rows of a table with the vectors that are most similar to a given one, by cosine; for VECTOR_SEARCH."""

import functools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from remote_udf.types import spelled
from spark_client.base.errors import InvalidVector

__all__ = ["Nearest"]

_SCORES = 1 << 22
"""Maximum number of scores that are computed at a time."""
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_null)


@dataclass(frozen=True)
class Nearest:
    """A table in the format of an Arrow stream, so that it can be pickled, and the column with its vectors."""

    rows: bytes
    column: int
    score: str
    """The name of the added field."""

    @functools.cached_property
    def _table(self) -> pa.RecordBatch:
        table = pa.ipc.open_stream(self.rows).read_all().combine_chunks()
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)

    @functools.cached_property
    def _unit(self) -> np.ndarray:
        return unit_vectors(self._table.column(self.column), "the searched table")

    def search(self, vectors: pa.Array, most: int) -> pa.Array:
        """For each vector a list of at most `most` rows with their score, the most similar first.

        The list is empty for a null. In a list, rows with equal scores keep the order of the table. Raises
        InvalidVector.
        """
        known = vectors.drop_null()
        queries = unit_vectors(known, "the query")
        table = self._unit
        if len(queries) and len(table) and queries.shape[1] != table.shape[1]:
            raise InvalidVector(
                f"VECTOR_SEARCH: a vector of {queries.shape[1]} numbers cannot be compared with those of the searched "
                f"table, which have {table.shape[1]}; both must be of one model"
            )
        count = min(most, len(table))
        step = max(1, _SCORES // max(1, len(table)))
        found = [_best(queries[at : at + step], table, count) for at in range(0, len(queries) if count else 0, step)]
        positions = np.concatenate([part[0].ravel() for part in found]) if found else np.empty(0, np.int64)
        scores = np.concatenate([part[1].ravel() for part in found]) if found else np.empty(0)
        taken = self._table.take(pa.array(positions))
        names = [*self._table.schema.names, self.score]
        columns = [*taken.columns, pa.array(scores, pa.float64())]
        lengths = np.where(vectors.is_valid().to_numpy(zero_copy_only=False), count, 0)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(columns, names))


def unit_vectors(vectors: pa.Array, where: str) -> np.ndarray:
    """The vectors with length 1 as rows of a matrix; zeros stay zeros. Raises InvalidVector, which names `where`."""
    if not pa.types.is_list(vectors.type) or not any(is_(vectors.type.value_type) for is_ in _NUMBERS):
        raise InvalidVector(f"VECTOR_SEARCH: {where} is {spelled(vectors.type)}; an array of numbers is expected")
    lengths = vectors.value_lengths().to_numpy(zero_copy_only=False) if len(vectors) else np.empty(0, np.int32)
    if len(lengths) and lengths.min() != lengths.max():
        raise InvalidVector(
            f"VECTOR_SEARCH: {where} has vectors of {lengths.min()} and of {lengths.max()} numbers; they must be of "
            "one model"
        )
    values = vectors.flatten()
    if values.null_count:
        raise InvalidVector(f"VECTOR_SEARCH: {where} has a vector with a null in it")
    single = pa.types.is_float32(values.type)
    matrix = values.to_numpy(zero_copy_only=False).astype(np.float32 if single else np.float64)
    matrix = matrix.reshape(len(vectors), -1) if len(vectors) and len(values) else matrix.reshape(len(vectors), 0)
    if not np.isfinite(matrix).all():
        raise InvalidVector(f"VECTOR_SEARCH: {where} has a vector with NaN or an infinite number in it")
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.divide(matrix, norms, out=np.zeros_like(matrix), where=norms > 0)


def _best(queries: np.ndarray, table: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The positions and the scores of the best rows for each query, the best first."""
    # Rounding may exceed 1.
    scores = np.clip(queries @ table.T, -1, 1)
    kth = min(count, len(table) - 1)
    positions = np.sort(np.argpartition(-scores, kth, axis=1)[:, :count], axis=1)
    chosen = np.take_along_axis(scores, positions, axis=1)
    order = np.argsort(-chosen, axis=1, kind="stable")
    return np.take_along_axis(positions, order, axis=1), np.take_along_axis(chosen, order, axis=1)
