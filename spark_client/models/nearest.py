"""The rows of a table with the vectors that are most similar to a given one, by cosine; for VECTOR_SEARCH.

A score is a function of its two vectors alone: it is computed in double, by operations on single numbers in an order
that their count determines. The sums of a matrix product depend on the shape of the matrices and on the machine, so the
product only selects the pairs whose scores may be among the highest, with a margin for its error.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from remote_udf.types import spelled
from spark_client.base.errors import InvalidVector

__all__ = ["Nearest", "numbers_of"]

_SCORES = 1 << 22
"""Maximum number of scores that are estimated at a time, and of numbers of vectors that are multiplied at a time."""
_ROUNDING = 2.0**-24
"""The relative error of an operation on single-precision numbers."""
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
    def _vectors(self) -> "_Vectors":
        return _Vectors.of(numbers_of(self._table.column(self.column), "the searched table"))

    def search(self, vectors: pa.Array, most: int) -> pa.Array:
        """For each vector a list of at most `most` rows with their score, the most similar first.

        The list is empty for a null. In a list, rows with equal scores keep the order of the table. Raises
        InvalidVector.
        """
        queries = _Vectors.of(numbers_of(vectors.drop_null(), "the query"))
        table = self._vectors
        width = queries.numbers.shape[1]
        if len(queries.numbers) and len(table.numbers) and width != table.numbers.shape[1]:
            raise InvalidVector(
                f"VECTOR_SEARCH: a vector of {width} numbers cannot be compared with those of the searched "
                f"table, which have {table.numbers.shape[1]}; both must be of one model"
            )
        count = min(most, len(table.numbers))
        step = max(1, _SCORES // max(1, len(table.numbers)))
        starts = range(0, len(queries.numbers) if count else 0, step)
        found = [_best(queries.part(at, at + step), table, count) for at in starts]
        positions = np.concatenate([part[0] for part in found]) if found else np.empty(0, np.int64)
        scores = np.concatenate([part[1] for part in found]) if found else np.empty(0)
        taken = self._table.take(pa.array(positions))
        names = [*self._table.schema.names, self.score]
        columns = [*taken.columns, pa.array(scores, pa.float64())]
        lengths = np.where(vectors.is_valid().to_numpy(zero_copy_only=False), count, 0)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(columns, names))


class _Vectors(NamedTuple):
    """Vectors as rows. A vector of zeros has the unit vector 0, and the score 0 with any other one."""

    numbers: np.ndarray
    largest: np.ndarray
    """The largest magnitude in each vector, as a column; 1 for zeros."""
    squares: np.ndarray
    """The sum of the squares of each vector that is divided by its largest magnitude; 1 for zeros."""
    units: np.ndarray
    """The vectors with length 1, in single precision."""

    @classmethod
    def of(cls, numbers: np.ndarray) -> "_Vectors":
        count, width = numbers.shape
        largest, squares, units = np.ones((count, 1)), np.ones(count), np.empty((count, width), np.float32)
        step = max(1, _SCORES // max(1, width))
        for at in range(0, count, step):
            part = slice(at, at + step)
            peaks = np.abs(numbers[part]).max(axis=1, keepdims=True, initial=0).astype(np.float64)
            largest[part] = np.where(peaks > 0, peaks, 1)
            scaled = numbers[part] / largest[part]
            sums = _sums(scaled * scaled)
            squares[part] = np.where(sums > 0, sums, 1)
            units[part] = scaled / np.sqrt(squares[part, np.newaxis])
        return cls(numbers, largest, squares, units)

    def part(self, begin: int, end: int) -> "_Vectors":
        return _Vectors(*(each[begin:end] for each in self))

    def scaled(self, rows: np.ndarray) -> np.ndarray:
        return self.numbers[rows] / self.largest[rows]


def numbers_of(vectors: pa.Array, where: str) -> np.ndarray:
    """The vectors as rows of a matrix of single or double precision. Raises InvalidVector, which names `where`."""
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
    return matrix


def _best(queries: _Vectors, table: _Vectors, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The positions and the scores of the best rows for each query, the best first."""
    estimates = queries.units @ table.units.T
    kth = np.partition(estimates, -count, axis=1)[:, -count, np.newaxis].astype(np.float64)
    # Sums of products of unit vectors differ from the exact one by this much, in whichever order they are added.
    terms = (table.units.shape[1] + 8) * _ROUNDING
    error = terms / (1 - terms) if terms < 0.5 else 2.0
    near = estimates >= kth - 2 * error
    near[~queries.units.any(axis=1), count:] = False  # all scores of zeros are equal
    of_query, positions = np.nonzero(near)
    scores = np.empty(len(positions))
    step = max(1, _SCORES // max(1, table.units.shape[1]))
    for at in range(0, len(positions), step):
        part = slice(at, at + step)
        ours, theirs = of_query[part], positions[part]
        products = _sums(queries.scaled(ours) * table.scaled(theirs))
        # The root of a product, for the score of equal vectors is then exactly 1.
        scores[part] = products / np.sqrt(queries.squares[ours] * table.squares[theirs])
    np.clip(scores, -1, 1, out=scores)  # rounding may exceed 1
    order = np.lexsort((positions, -scores, of_query))
    ends = np.cumsum(np.bincount(of_query, minlength=len(queries.numbers)))
    begins = np.concatenate([[0], ends[:-1]])
    chosen = order[(begins[:, np.newaxis] + np.arange(count)).ravel()]
    return positions[chosen], scores[chosen]


def _sums(products: np.ndarray) -> np.ndarray:
    """The sum of each row, which is overwritten: its halves are added until one number is left."""
    while (width := products.shape[1]) > 1:
        half = (width + 1) // 2
        products[:, : width - half] += products[:, half:]
        products = products[:, :half]
    return products[:, 0] if width else np.zeros(len(products))
