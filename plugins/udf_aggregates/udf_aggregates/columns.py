"""Columns of bundles as numpy arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import udf_server as udf

__all__ = ["Doubles", "Integers", "accumulator_fields", "doubles_of", "signs_of"]

Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def signs_of(bundle: udf.Bundle) -> Integers:
    """Returns 1 for each row that is added and -1 for each row that is retracted."""
    if bundle.retracts is None:
        return np.ones(bundle.rows, np.int64)
    return np.where(bundle.retracts, -1, 1)


def doubles_of(column: pa.Array) -> Doubles:
    """Returns the values of a column without nulls; -0.0 becomes 0.0."""
    return column.to_numpy(zero_copy_only=False) + 0.0


def accumulator_fields(accumulators: pa.StructArray) -> list[npt.NDArray[Any]]:
    """Returns an array per field of the accumulators."""
    return [field.to_numpy(zero_copy_only=False) for field in accumulators.flatten()]
