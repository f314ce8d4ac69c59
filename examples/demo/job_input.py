"""The rows of the demo: the bundled airports, or the user's own file.

The values of the first rows decide which column is looked up, in this order:

1. the text column of which at least half are airport codes, such as SFO
2. a numeric latitude with a numeric longitude, by their names
3. the text column with the most values that name a city or an airport

DEMO_COLUMN names the column instead. DEMO_ROWS limits the rows, because the comparison is slow.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType, StringType

from examples.demo.airports import AIRPORTS_CSV, Airport, Airports

__all__ = ["InputError", "JobInput", "read_input"]

ROWS = 4_000
SAMPLE = 1_000
LATITUDES = ("latitude", "lat")
LONGITUDES = ("longitude", "lon", "lng", "long")
TAKES = (
    "The demo takes a text column of airport codes (SFO), numeric columns latitude and longitude, "
    "or a text column that names cities or airports (San Francisco)"
)


class InputError(Exception):
    """The input is unusable; the message says why in one line."""


@dataclass(frozen=True)
class JobInput:
    """`frame` has the user's columns and `path`, the request to the service; `is_users`: it is the user's own file."""

    frame: DataFrame
    title: str
    chosen: str
    is_users: bool


def read_input(spark: SparkSession, environment: Mapping[str, str] = os.environ) -> JobInput:
    """Returns the rows to look up. Raises InputError."""
    given = environment.get("DEMO_INPUT", "")
    rows = _rows(environment.get("DEMO_ROWS", ""))
    path = Path(given).expanduser() if given else AIRPORTS_CSV
    title = str(given or "airports.csv of the package vega_datasets")
    try:
        frame = _read(spark, path)
        sample = frame.limit(SAMPLE).collect()
    except PySparkException as error:
        # The first line of Spark's message has the cause; the rest is too long.
        raise InputError(f"DEMO_INPUT={given}: cannot be read: {str(error).strip().splitlines()[0]}") from error
    if not sample:
        raise InputError(f"DEMO_INPUT={given}: has no rows")
    chosen, asked = _choose(frame, sample, environment.get("DEMO_COLUMN", ""), title)
    taken = frame.withColumn("path", asked).where("path IS NOT NULL").limit(rows)
    # There are two tasks on any machine, so that times are comparable.
    return JobInput(taken.repartition(2), title, chosen, is_users=bool(given))


def _rows(text: str) -> int:
    if text and not (text.isascii() and text.isdecimal() and int(text)):
        raise InputError(f"DEMO_ROWS={text}: is not a whole number greater than zero")
    return int(text or ROWS)


def _read(spark: SparkSession, path: Path) -> DataFrame:
    if not path.exists():
        raise InputError(f"DEMO_INPUT={path}: there is no such file")
    name = path.name.lower()
    uri = path.resolve().as_uri()
    if name.endswith(".parquet") or path.is_dir():
        if path.is_file():
            # Spark's own message has fifty lines.
            try:
                pq.read_schema(path)
            except pa.ArrowException as error:
                raise InputError(f"DEMO_INPUT={path}: is not Parquet: {error}") from error
        return spark.read.parquet(uri)
    if name.endswith((".csv", ".csv.gz", ".csv.bz2")):
        return spark.read.csv(uri, header=True, inferSchema=True, quote='"', escape='"')
    raise InputError(
        f"DEMO_INPUT={path}: is neither CSV with a header (.csv, .csv.gz, .csv.bz2) nor Parquet (.parquet)"
    )


def _choose(frame: DataFrame, sample: list[Row], wanted: str, title: str) -> tuple[str, Column]:
    """Returns a description of the choice, and the path to request."""
    airports = Airports.load()
    columns = {column.lower(): column for column in reversed(frame.columns)}
    texts = [field.name for field in frame.schema if isinstance(field.dataType, StringType)]
    if wanted:
        if wanted.lower() not in columns:
            raise InputError(f"DEMO_COLUMN={wanted}: {title} has no such column; it has {', '.join(frame.columns)}")
        texts = [columns[wanted.lower()]]
        if not isinstance(frame.schema[texts[0]].dataType, StringType):
            raise InputError(f"DEMO_COLUMN={wanted}: is not text. {TAKES}")
    codes = _best(sample, texts, airports.by_code)
    if codes is not None and codes[1] >= 0.5:
        return f"airport codes in column {codes[0]}", _asked("airport?code=", codes[0])
    numbers = {field.name.lower() for field in frame.schema if isinstance(field.dataType, NumericType)}
    latitude = next((name for name in LATITUDES if name in numbers), None)
    longitude = next((name for name in LONGITUDES if name in numbers), None)
    if latitude and longitude and not wanted:
        path = F.format_string(
            "airport?latitude=%s&longitude=%s", _quoted(columns[latitude]), _quoted(columns[longitude])
        )
        known = _quoted(columns[latitude]).isNotNull() & _quoted(columns[longitude]).isNotNull()
        return f"coordinates in columns {columns[latitude]} and {columns[longitude]}", F.when(known, path)
    places = _best(sample, texts, airports.search)
    if places is not None and places[1] > 0:
        return f"names of places in column {places[0]}", _asked("airport?text=", places[0])
    found = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema)
    raise InputError(f"{title}: no usable column. {TAKES}. It has {found}")


def _best(sample: list[Row], columns: list[str], find: Callable[[str], Airport | None]) -> tuple[str, float] | None:
    """Returns the column with the largest share of values that `find` finds, and that share."""
    shares = []
    for column in columns:
        values = [row[column] for row in sample if row[column] is not None]
        shares.append((column, sum(find(value) is not None for value in values) / max(len(values), 1)))
    return max(shares, key=lambda pair: pair[1], default=None)


def _asked(query: str, column: str) -> Column:
    return F.concat(F.lit(query), F.url_encode(_quoted(column)))


def _quoted(column: str) -> Column:
    """Quotes the whole name of a column, including dots."""
    return F.col("`" + column.replace("`", "``") + "`")
