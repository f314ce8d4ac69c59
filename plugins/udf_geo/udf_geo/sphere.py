"""Great circles on a sphere: distance and bearing."""

import numpy as np
import pyarrow as pa

import udf_server as udf
from udf_geo.degrees import Degrees, latitudes, longitudes

__all__ = ["EARTH_RADIUS_METRES", "bearing", "great_circle", "haversine"]

EARTH_RADIUS_METRES = 6_371_008.8
"""Mean radius R1 of GRS 80 (H. Moritz, Geodetic Reference System 1980, Journal of Geodesy 74, 2000, p. 131)."""


@udf.scalar(vectorized=True, nulls="skip")
def haversine(
    latitude1: pa.DoubleArray, longitude1: pa.DoubleArray, latitude2: pa.DoubleArray, longitude2: pa.DoubleArray
) -> pa.DoubleArray:
    """The great-circle distance of two points in metres; coordinates are degrees.

    The earth is assumed to be a sphere, so a distance is off by up to 0.5 %. Among the formulas
    for a sphere the haversine keeps its precision for near points (R. W. Sinnott, Virtues of the
    Haversine, Sky and Telescope 68, 1984, p. 159).
    """
    return pa.array(
        great_circle(
            latitudes(latitude1, "latitude1"), longitudes(longitude1, "longitude1"),
            latitudes(latitude2, "latitude2"), longitudes(longitude2, "longitude2"),
        )
    )  # fmt: skip


def great_circle(latitude1: Degrees, longitude1: Degrees, latitude2: Degrees, longitude2: Degrees) -> Degrees:
    """Returns metres from the first points to the second; the arrays of degrees have one length."""
    north1, north2 = np.radians(latitude1), np.radians(latitude2)
    # The angle is reduced first, because a sine loses precision far from zero.
    east = np.radians(np.remainder(longitude2 - longitude1, 360.0))
    half = np.sin((north2 - north1) / 2) ** 2 + np.cos(north1) * np.cos(north2) * np.sin(east / 2) ** 2
    # For antipodes rounding may give more than one, which has no arcsine.
    metres: Degrees = 2 * EARTH_RADIUS_METRES * np.arcsin(np.sqrt(np.minimum(half, 1.0)))
    return metres


@udf.scalar(vectorized=True, nulls="skip")
def bearing(
    latitude1: pa.DoubleArray, longitude1: pa.DoubleArray, latitude2: pa.DoubleArray, longitude2: pa.DoubleArray
) -> pa.DoubleArray:
    """The direction of a great circle at the first point towards the second: degrees from north, clockwise.

    The result is from 0 up to 360, 360 excluded; 0 if the points are the same. The formula is that of a spherical
    triangle with two sides and the angle between them (J. Meeus, Astronomical Algorithms, 2nd ed., 1998, ch. 17).
    """
    north1 = np.radians(latitudes(latitude1, "latitude1"))
    north2 = np.radians(latitudes(latitude2, "latitude2"))
    east = np.radians(np.remainder(longitudes(longitude2, "longitude2") - longitudes(longitude1, "longitude1"), 360.0))
    across = np.sin(east) * np.cos(north2)
    along = np.cos(north1) * np.sin(north2) - np.sin(north1) * np.cos(north2) * np.cos(east)
    degrees = np.remainder(np.degrees(np.arctan2(across, along)), 360.0)
    # A tiny negative angle rounds to 360 itself.
    return pa.array(np.where(degrees >= 360.0, 0.0, degrees))
