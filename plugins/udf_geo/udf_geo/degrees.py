"""Conversion of Arrow arrays of degrees to checked numpy arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Degrees", "latitudes", "longitudes"]

Degrees = npt.NDArray[np.float64]


def latitudes(array: pa.DoubleArray, name: str) -> Degrees:
    """Returns values from -90 to 90. Raises ValueError, naming the first invalid value."""
    values = _finite(array, name)
    _refuse(np.abs(values) > 90.0, values, f"{name}: %r is not a latitude, which lies from -90 to 90 degrees")
    return values


def longitudes(array: pa.DoubleArray, name: str) -> Degrees:
    """Returns finite values; longitudes repeat every 360 degrees. Raises ValueError, naming the first invalid value."""
    return _finite(array, name)


def _finite(array: pa.DoubleArray, name: str) -> Degrees:
    values: Degrees = array.to_numpy(zero_copy_only=False)
    _refuse(~np.isfinite(values), values, f"{name}: %r is not a finite number")
    return values


def _refuse(wrong: npt.NDArray[Any], values: Degrees, message: str) -> None:
    if wrong.any():
        raise ValueError(message % float(values[wrong.argmax()]))
