"""Geohashes: G. Niemeyer's encoding of a latitude and a longitude as one short text (geohash.org, 2008)."""

import numpy as np
import pyarrow as pa

import udf_server as udf
from udf_geo.degrees import Degrees, latitudes, longitudes

__all__ = ["geohash"]

ALPHABET = np.frombuffer(b"0123456789bcdefghjkmnpqrstuvwxyz", np.uint8)
LENGTH = 9
"""Characters unless asked for another length: a cell of less than five metres."""
LONGEST = 12
BITS = 5 * LONGEST // 2
"""Bits of each coordinate in the longest geohash."""


@udf.scalar(vectorized=True, nulls="skip")
def geohash(latitude: pa.DoubleArray, longitude: pa.DoubleArray, length: pa.Int64Array = None) -> pa.StringArray:
    """The geohash of a point given in degrees, of 9 characters or of `length`, from 1 to 12.

    A cell includes its southern and western edges; the north pole belongs to the northernmost cells.
    """
    north = _cells((latitudes(latitude, "latitude") + 90.0) / 180.0)
    # The remainder is taken only if necessary: it would lose the last bits of a tiny negative longitude.
    degrees = longitudes(longitude, "longitude")
    turned = np.where(np.abs(degrees) < 180.0, degrees, np.remainder(degrees + 180.0, 360.0) - 180.0)
    east = _cells((turned + 180.0) / 360.0)
    places = np.full((len(north), LONGEST), 0, np.uint8)
    for bit in range(5 * LONGEST):
        # Bits of longitude and latitude alternate, the most significant first, starting with longitude.
        source = north if bit % 2 else east
        value = source >> np.uint64(BITS - 1 - bit // 2) & np.uint64(1)
        places[:, bit // 5] |= value.astype(np.uint8) << (4 - bit % 5)
    return _text(ALPHABET[places], _lengths(length, len(north)))


def _cells(share: Degrees) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Returns which of 2**BITS equal parts a share from 0 to 1 lies in."""
    return np.minimum(np.floor(share * 2.0**BITS), 2.0**BITS - 1).astype(np.uint64)


def _lengths(given: pa.Int64Array | None, rows: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if given is None:
        return np.full(rows, LENGTH, np.int64)
    lengths: np.ndarray[tuple[int], np.dtype[np.int64]] = given.to_numpy(zero_copy_only=False)
    wrong = (lengths < 1) | (lengths > LONGEST)
    if wrong.any():
        raise ValueError(f"length: {lengths[wrong.argmax()]} is not from 1 to {LONGEST}")
    return lengths


def _text(characters: np.ndarray[tuple[int, int], np.dtype[np.uint8]], lengths: np.ndarray) -> pa.StringArray:
    """Returns the first `lengths` characters of every row."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = characters[np.arange(LONGEST) < lengths[:, None]]
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(data))
