"""The plugin `geo`: functions of coordinates."""

import udf_server as udf
from udf_geo.airports import reverse_geocode
from udf_geo.geohashes import geohash
from udf_geo.nearest import nearest
from udf_geo.sphere import bearing, haversine

__all__ = ["bearing", "geohash", "haversine", "nearest", "reverse_geocode", "udf_functions"]


@udf.hookimpl
def udf_functions() -> list[udf.Function]:
    """The functions of this plugin."""
    return [bearing, geohash, haversine, nearest, reverse_geocode]
