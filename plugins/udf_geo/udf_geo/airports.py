"""reverse_geocode: the airport nearest to a point, among those in the package airportsdata."""

import airportsdata
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import udf_server as udf
from udf_geo.degrees import Degrees, latitudes, longitudes
from udf_geo.sphere import great_circle

__all__ = ["reverse_geocode"]

FIELDS = {
    "iata": "iata", "icao": "icao", "name": "name", "city": "city", "region": "subd", "country": "country",
    "timezone": "tz",
}  # fmt: skip
"""Names in the result, and in the package."""
ROWS = 1024
"""Points that are compared with all airports at once: 64 MB."""


class ReverseGeocode:
    """The nearest airport that has an IATA code: codes, name, city, region, country, time zone, and distance in metres.

    Fields that the airport does not have are null.
    """

    def open(self) -> None:
        """Reads the airports, which takes 0.1 s."""
        airports = list(airportsdata.load("IATA").values())
        self.latitudes = np.array([airport["lat"] for airport in airports])
        self.longitudes = np.array([airport["lon"] for airport in airports])
        self.directions = _directions(self.latitudes, self.longitudes).T
        self.columns = [
            pa.array([str(airport[key]) or None for airport in airports])  # type: ignore[literal-required]
            for key in FIELDS.values()
        ]

    def eval(self, latitude: pa.DoubleArray, longitude: pa.DoubleArray) -> pa.StructArray:
        north, east = latitudes(latitude, "latitude"), longitudes(longitude, "longitude")
        points = _directions(north, east)
        nearest = np.empty(len(points), np.int64)
        for start in range(0, len(points), ROWS):
            # The smallest angle has the largest cosine. Rounding is below 0.1 m; no two airports are that close.
            nearest[start : start + ROWS] = (points[start : start + ROWS] @ self.directions).argmax(axis=1)
        metres = great_circle(north, east, self.latitudes[nearest], self.longitudes[nearest])
        columns = [column.take(pa.array(nearest)) for column in self.columns]
        return pa.StructArray.from_arrays([*columns, pa.array(metres)], [*FIELDS, "metres"])


def _directions(north: Degrees, east: Degrees) -> npt.NDArray[np.float64]:
    """Returns unit vectors from the centre of the earth, one per row."""
    phi, lambda_ = np.radians(north), np.radians(np.remainder(east, 360.0))
    return np.column_stack([np.cos(phi) * np.cos(lambda_), np.cos(phi) * np.sin(lambda_), np.sin(phi)])


reverse_geocode = udf.scalar(
    name="reverse_geocode",
    vectorized=True,
    nulls="skip",
    parameters="latitude double, longitude double",
    returns=f"struct<{','.join(f'{name}:string' for name in FIELDS)},metres:double>",
)(ReverseGeocode)
