"""The PySpark side: remote functions in DataFrames and in SQL."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from vega_datasets import data

from examples.demo.comparison import IN_FLIGHT
from spark_client import RemoteSession

__all__ = ["SAN_FRANCISCO", "farthest", "found", "hours", "states"]

AIRPORT = "iata string, name string, city string, state string, country string, latitude double, longitude double"
SAN_FRANCISCO = (37.619, -122.375)
"""Its airport, in degrees."""


def found(remote: RemoteSession, frame: DataFrame) -> DataFrame:
    """The airport that each row asks for; one remote call feeds three others."""
    look_up = remote.function("http_get_json", buffer_capacity=IN_FLIGHT)
    haversine, bearing, geohash = (remote.function(name) for name in ("haversine", "bearing", "geohash"))
    places = (
        frame.select(F.from_json(look_up("path"), AIRPORT).alias("place")).where("place IS NOT NULL").select("place.*")
    )
    here = [F.lit(degrees) for degrees in SAN_FRANCISCO]
    return places.select(
        "iata", "name", "city", "state",
        (haversine(*here, "latitude", "longitude") / 1000).alias("km"),
        bearing(*here, "latitude", "longitude").alias("bearing"),
        geohash("latitude", "longitude", 6).alias("geohash"),
    )  # fmt: skip


def farthest(remote: RemoteSession, frame: DataFrame, rows: int) -> DataFrame:
    """The airports farthest from San Francisco, each once."""
    return found(remote, frame).distinct().orderBy(F.desc("km"), "iata").limit(rows)


STATES = """
    SELECT place.state,
           count(*) AS rows,
           min(haversine({latitude}, {longitude}, place.latitude, place.longitude)) / 1000 AS nearest_km,
           max(haversine({latitude}, {longitude}, place.latitude, place.longitude)) / 1000 AS farthest_km
    FROM (SELECT from_json(http_get_json(path), '{airport}') AS place FROM asked)
    WHERE place IS NOT NULL
    GROUP BY place.state ORDER BY rows DESC, state LIMIT {rows}
"""


def states(spark: SparkSession, remote: RemoteSession, frame: DataFrame, rows: int) -> DataFrame:
    """Rows and distances by state, in SQL."""
    remote.register("http_get_json", buffer_capacity=IN_FLIGHT)
    remote.register("haversine")
    frame.createOrReplaceTempView("asked")
    latitude, longitude = (f"{degrees}D" for degrees in SAN_FRANCISCO)
    return spark.sql(STATES.format(latitude=latitude, longitude=longitude, airport=AIRPORT, rows=rows))


def hours(spark: SparkSession, remote: RemoteSession) -> DataFrame:
    """San Francisco's hourly temperatures beside Seattle's, which are looked up; a row for each month."""
    readings = spark.read.csv(data.sf_temps.filepath, header=True, schema="temp double, date string").repartition(2)
    at = F.to_timestamp("date", "yyyy/MM/dd HH:mm:ss")
    path = F.concat(F.lit("seattle?hour="), F.date_format(at, "yyyy-MM-dd'T'HH"))
    asked = readings.select("temp", F.month(at).alias("month"), path.alias("path"))
    look_up = remote.function("http_get_json")
    answered = remote.with_columns(
        asked, {"answer": look_up("path")}, output_mode="unordered", buffer_capacity=IN_FLIGHT
    )
    seattle = F.from_json("answer", "fahrenheit double").fahrenheit
    return (
        answered.groupBy("month")
        .agg(
            F.count("*").alias("hours"),
            F.count("answer").alias("found"),
            F.avg("temp").alias("san_francisco"),
            F.avg(seattle).alias("seattle"),
            F.count_if(seattle > F.col("temp")).alias("seattle_warmer"),
        )
        .orderBy("month")
    )
