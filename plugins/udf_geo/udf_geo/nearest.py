"""nearest: the nearest one of several points."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import udf_server as udf
from udf_geo import degrees
from udf_geo.sphere import great_circle

__all__ = ["nearest"]


@udf.scalar(
    vectorized=True,
    nulls="skip",
    parameters="latitude double, longitude double, latitudes array<double>, longitudes array<double>",
    returns="struct<position:int,metres:double>",
)
def nearest(
    latitude: pa.DoubleArray, longitude: pa.DoubleArray, latitudes: pa.ListArray, longitudes: pa.ListArray
) -> pa.StructArray:
    """The nearest point of two arrays, of latitudes and longitudes: its place, from 0, and its distance.

    If several points have the same distance, the first one counts; null if the arrays are empty. Raises ValueError for
    arrays of different lengths, or with a null or another invalid coordinate.
    """
    rows = len(latitude)
    lengths = pc.list_value_length(latitudes).to_numpy()
    different = lengths != pc.list_value_length(longitudes).to_numpy()
    if different.any():
        row = int(different.argmax())
        raise ValueError(f"{len(latitudes[row])} latitudes and {len(longitudes[row])} longitudes")
    owners = np.repeat(np.arange(rows), lengths)
    metres = great_circle(
        degrees.latitudes(latitude, "latitude")[owners],
        degrees.longitudes(longitude, "longitude")[owners],
        degrees.latitudes(latitudes.flatten(), "latitudes"),
        degrees.longitudes(longitudes.flatten(), "longitudes"),
    )
    least = np.full(rows, np.inf)
    np.minimum.at(least, owners, metres)
    hits = np.flatnonzero(metres == least[owners])
    found, first = np.unique(owners[hits], return_index=True)
    positions = np.zeros(rows, np.int32)
    positions[found] = hits[first] - (np.cumsum(lengths) - lengths)[found]
    return pa.StructArray.from_arrays(
        [pa.array(positions), pa.array(least)], ["position", "metres"], mask=pa.array(lengths == 0)
    )
