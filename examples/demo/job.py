"""The PySpark side: remote functions, scalar and aggregate, in DataFrames and in SQL."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from vega_datasets import data

from examples.demo.comparison import IN_FLIGHT
from spark_client import RemoteSession, Window

__all__ = ["SAN_FRANCISCO", "farthest", "found", "hours", "months", "names", "states", "warmest"]

AIRPORT = "iata string, name string, city string, state string, country string, latitude double, longitude double"
SAN_FRANCISCO = (37.619, -122.375)
"""Its airport, in degrees."""


def found(remote: RemoteSession, frame: DataFrame) -> DataFrame:
    """The airport that each row names; one remote call feeds three others."""
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
    """The airports farthest from San Francisco, without duplicates."""
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
    """San Francisco's hourly temperatures beside Seattle's, which are looked up; one row per month."""
    path = F.concat(F.lit("seattle?hour="), F.date_format("at", "yyyy-MM-dd'T'HH"))
    asked = _readings(spark).select("temp", F.month("at").alias("month"), path.alias("path"))
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


def months(spark: SparkSession, remote: RemoteSession) -> DataFrame:
    """San Francisco's temperatures by month: remote aggregates and Spark's own in one pass over the rows."""
    average, median, top_k = (remote.function(name) for name in ("average", "median", "top_k"))
    return (
        remote.group_by(_readings(spark), F.month("at").alias("month"))
        .agg(
            F.count("*").alias("hours"),
            F.avg("temp").alias("avg"),
            average("temp").alias("average"),
            median("temp").alias("median"),
            median("temp").filter(F.hour("at").between(11, 16)).alias("median_at_noon"),
            top_k("temp", F.lit(3)).alias("highest"),
        )
        .orderBy("month")
    )


def warmest(spark: SparkSession, remote: RemoteSession, rows: int) -> DataFrame:
    """The time when the moving mean was highest, by month: exponentially weighted, its value after each hour."""
    mean = remote.function("ewm_mean")("temp", F.lit(0.1)).over(Window.orderBy("at"))
    found = (
        remote.with_columns(_readings(spark), {"mean": mean})
        .groupBy(F.month("at").alias("month"))
        .agg(F.max(F.struct("mean", "at")).alias("highest"))
    )
    return found.select("month", "highest.at", "highest.mean").orderBy(F.desc("mean"), "at").limit(rows)


def names(spark: SparkSession) -> DataFrame:
    """The names of all airports."""
    return spark.read.csv(data.airports.filepath, header=True).select("name").repartition(2)


def _readings(spark: SparkSession) -> DataFrame:
    """The temperature of each hour of a year in San Francisco, in degrees Fahrenheit."""
    texts = spark.read.csv(data.sf_temps.filepath, header=True, schema="temp double, date string").repartition(2)
    return texts.select("temp", F.to_timestamp("date", "yyyy/MM/dd HH:mm:ss").alias("at"))
