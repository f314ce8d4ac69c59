"""Distances, nearest points, bearings and geohashes are compared with published values and their definitions."""

import importlib.metadata
import math

import airportsdata
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from udf_geo import bearing, geohash, haversine, nearest, reverse_geocode
from udf_geo.sphere import EARTH_RADIUS_METRES
from udf_server.testing import FunctionEnvironment

ALPHABET = "0123456789bcdefghjkmnpqrstuvwxyz"

latitudes = st.floats(-90, 90)
longitudes = st.floats(-180, 180, exclude_max=True)


async def values(function, *arguments, **options):
    async with FunctionEnvironment() as environment:
        return (await environment.run(function, *arguments, **options)).to_pylist()


def one(function, *arguments):
    return function(*(pa.array([argument]) for argument in arguments))[0].as_py()


async def test_a_quarter_and_a_half_of_a_meridian_have_their_lengths():
    metres = await values(haversine, [0.0, 90.0, 0.0], [0.0, 0.0, 0.0], [90.0, -90.0, 0.0], [0.0, 0.0, 180.0])
    quarter = math.pi / 2 * EARTH_RADIUS_METRES
    assert metres == pytest.approx([quarter, 2 * quarter, 2 * quarter])


async def test_nashville_to_los_angeles_is_the_distance_of_the_published_example():
    """36.12 N 86.67 W to 33.94 N 118.40 W is 2886.44 km at a radius of 6371 km and 2887.26 km at 6372.8 km."""
    metres = await values(haversine, [36.12], [-86.67], [33.94], [-118.40])
    assert metres == pytest.approx([2887259.95 * EARTH_RADIUS_METRES / 6372800.0], rel=1e-7)


async def test_near_points_keep_their_precision():
    metre = math.degrees(1.0 / EARTH_RADIUS_METRES)
    assert await values(haversine, [45.0], [7.0], [45.0 + metre], [7.0]) == pytest.approx([1.0], rel=1e-8)


@settings(deadline=None)
@given(latitudes, longitudes, latitudes, longitudes)
def test_distance_is_the_same_both_ways_and_round_the_world(latitude1, longitude1, latitude2, longitude2):
    there = one(haversine, latitude1, longitude1, latitude2, longitude2)
    assert 0 <= there <= math.pi * EARTH_RADIUS_METRES * (1 + 1e-12)
    assert one(haversine, latitude2, longitude2, latitude1, longitude1) == pytest.approx(there, abs=1e-3)
    assert one(haversine, latitude1, longitude1 + 360, latitude2, longitude2) == pytest.approx(there, abs=1e-3)


async def test_bearings_are_degrees_from_north_clockwise():
    degrees = await values(bearing, [0.0] * 5, [0.0] * 5, [1.0, 0.0, -1.0, 0.0, 0.0], [0.0, 1.0, 0.0, -1.0, 0.0])
    assert degrees == pytest.approx([0, 90, 180, 270, 0])


async def test_baghdad_to_osaka_sets_out_north_east():
    """The points are 35 N 45 E and 35 N 135 E; the bearing is 60.16 degrees."""
    assert await values(bearing, [35.0], [45.0], [35.0], [135.0]) == pytest.approx([60.16], abs=0.01)


@settings(deadline=None)
@given(latitudes, longitudes, latitudes, longitudes)
def test_a_bearing_is_at_least_0_and_less_than_360(latitude1, longitude1, latitude2, longitude2):
    assert 0 <= one(bearing, latitude1, longitude1, latitude2, longitude2) < 360


async def test_geohashes_are_those_of_the_published_examples():
    assert await values(geohash, [57.64911, 42.6, -25.382708], [10.40744, -5.6, -49.265506], [11, 5, 12]) == [
        "u4pruydqqvj",
        "ezs42",
        "6gkzwgjzn820",
    ]


async def test_a_geohash_has_nine_characters_unless_asked_otherwise():
    assert await values(geohash, [57.64911], [10.40744]) == ["u4pruydqq"]


async def test_poles_and_the_date_line_have_geohashes():
    hashes = await values(geohash, [90.0, -90.0, 90.0, 0.0], [0.0, -180.0, 179.999999, 180.0], [3] * 4)
    assert hashes == ["upb", "000", "zzz", "800"]


def cell(text):
    """South, north, west and east of a geohash, by halving as its inventor describes."""
    bounds = {0: [-180.0, 180.0], 1: [-90.0, 90.0]}
    bits = [ALPHABET.index(character) >> (4 - bit) & 1 for character in text for bit in range(5)]
    for place, bit in enumerate(bits):
        low, high = bounds[place % 2]
        bounds[place % 2][0 if bit else 1] = (low + high) / 2
    return (*bounds[1], *bounds[0])


@settings(deadline=None)
@given(latitudes, longitudes, st.integers(1, 12))
def test_a_point_lies_in_the_cell_of_its_geohash(latitude, longitude, length):
    text = one(geohash, latitude, longitude, length)
    south, north, west, east = cell(text)
    assert len(text) == length
    # Tiny coordinates are lost to rounding if 90 or 180 is added to them.
    assert south - 1e-13 <= latitude <= north
    assert west - 1e-13 <= longitude <= east


async def test_a_null_argument_gives_null():
    assert await values(haversine, [0.0, None], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]) == [0.0, None]
    assert await values(geohash, [0.0, 0.0], [None, 0.0], [1, None]) == [None, None]


async def test_a_row_with_a_senseless_coordinate_fails_alone():
    async with FunctionEnvironment() as environment:
        latitude = [0.0, 90.5, math.nan, 1.0]
        result = await environment.run(haversine, latitude, [0.0] * 4, [0.0] * 4, [0.0] * 4)
    assert {row: error.message.splitlines()[0] for row, error in result.errors.items()} == {
        1: "ValueError: latitude1: 90.5 is not a latitude, which lies from -90 to 90 degrees",
        2: "ValueError: latitude1: nan is not a finite number",
    }
    assert [value is None for value in result.values.to_pylist()] == [False, True, True, False]


async def test_a_row_with_a_senseless_length_fails_alone():
    async with FunctionEnvironment() as environment:
        result = await environment.run(geohash, [0.0] * 3, [0.0] * 3, [0, 12, 13])
    assert list(result.errors) == [0, 2]
    assert "length: 13 is not from 1 to 12" in result.errors[2].message


async def test_no_rows_are_no_trouble():
    empty = pa.array([], pa.float64())
    assert await values(geohash, empty, empty) == []


async def test_the_nearest_of_several_points_is_the_first_at_the_least_distance():
    # The points are on the equator, so a degree of longitude is a degree of distance.
    degree = math.pi / 180 * EARTH_RADIUS_METRES
    east = [[5.0, 1.0, 2.0, 1.0], [179.0, -179.0], [], [3.0], None]
    north = [[0.0] * len(each) if each is not None else None for each in east]
    found = await values(nearest, [0.0] * 5, [0.0, -178.0, 0.0, 0.0, 0.0], north, east)
    assert [None if row is None else row["position"] for row in found] == [1, 1, None, 0, None]
    assert [row["metres"] for row in found if row] == pytest.approx([degree, degree, 3 * degree])


points = st.lists(st.tuples(latitudes, longitudes), max_size=5)


@settings(deadline=None)
@given(st.lists(st.tuples(latitudes, longitudes, points), max_size=4))
def test_no_other_point_is_nearer(rows):
    north, east = (pa.array([row[side] for row in rows], pa.float64()) for side in (0, 1))
    lists = (pa.array([[p[side] for p in row[2]] for row in rows], pa.list_(pa.float64())) for side in (0, 1))
    found = nearest(north, east, *lists).to_pylist()
    for (latitude, longitude, others), near in zip(rows, found, strict=True):
        metres = [one(haversine, latitude, longitude, *other) for other in others]
        assert near == ({"position": metres.index(min(metres)), "metres": min(metres)} if metres else None)


async def test_a_row_with_senseless_points_fails_alone():
    async with FunctionEnvironment() as environment:
        north = [[0.0], [0.0, 1.0], [91.0], [None]]
        result = await environment.run(nearest, [0.0] * 4, [0.0] * 4, north, [[1.0], [0.0], [0.0], [0.0]])
    assert {row: error.message.splitlines()[0] for row, error in result.errors.items()} == {
        1: "ValueError: 2 latitudes and 1 longitudes",
        2: "ValueError: latitudes: 91.0 is not a latitude, which lies from -90 to 90 degrees",
        3: "ValueError: latitudes: nan is not a finite number",
    }


async def test_a_point_is_geocoded_by_the_nearest_airport():
    (found,) = await values(reverse_geocode, [37.62], [-122.38])
    assert 0 < found.pop("metres") < 1000
    assert found == {
        "iata": "SFO",
        "icao": "KSFO",
        "name": "San Francisco International Airport",
        "city": "San Francisco",
        "region": "California",
        "country": "US",
        "timezone": "America/Los_Angeles",
    }
    # The points are Alice Springs, Heathrow, a pole, and Fiji from the other side of the date line.
    north, east = [-23.70, 51.47, 90.0, -18.04, None], [133.88, -0.45, 0.0, 178.56 - 360, 0.0]
    found = await values(reverse_geocode, north, east)
    assert [airport and airport["country"] for airport in found] == ["AU", "GB", found[2]["country"], "FJ", None]
    assert [found[0]["iata"], found[1]["iata"], found[3]["iata"]] == ["ASP", "LHR", "SUV"]


async def test_no_other_airport_is_nearer():
    rows = 1500  # more than one chunk of the comparison
    generator = np.random.default_rng(1)
    north, east = generator.uniform(-90, 90, rows), generator.uniform(-180, 180, rows)
    found = await values(reverse_geocode, pa.array(north), pa.array(east))
    airports = list(airportsdata.load("IATA").values())
    for row in range(0, rows, 100):
        metres = haversine(
            pa.array([north[row]] * len(airports)), pa.array([east[row]] * len(airports)),
            pa.array([airport["lat"] for airport in airports]), pa.array([airport["lon"] for airport in airports]),
        ).to_numpy()  # fmt: skip
        assert found[row]["metres"] == pytest.approx(metres.min(), abs=0.2)


async def test_what_an_airport_has_not_is_null():
    (found,) = await values(reverse_geocode, [-6.71194], [156.39611])
    assert (found["iata"], found["city"]) == ("CHY", None)


def test_the_installed_package_is_a_plugin():
    (point,) = importlib.metadata.entry_points(group="udf_server", name="geo")
    names = [function.spec.name for function in point.load().udf_functions()]
    assert names == ["bearing", "geohash", "haversine", "nearest", "reverse_geocode"]
