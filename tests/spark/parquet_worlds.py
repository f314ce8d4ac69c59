"""Random Parquet files of every type, from a seed, written by Spark and by pyarrow in their various forms."""

import datetime as dt
import random
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

__all__ = ["World"]

_LEAVES = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(9,2)", "decimal(18,4)",
    "decimal(38,10)", "string", "binary", "date", "timestamp", "timestamp_ntz",
)  # fmt: skip
_PARTITIONS = {
    "int": [1, -2, None],
    "string": ["a b", "x=y/z", "ü%20", None],
    "date": [dt.date(2024, 2, 29), dt.date(1500, 1, 1)],
    "double": [0.5, -3.25],
    "timestamp": [dt.datetime(2024, 7, 1, 12, 30)],
}
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_DATES = (dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(1899, 12, 31), dt.date(1970, 1, 1), dt.date(9999, 12, 31))


@dataclass
class World:
    """Files in `path`, and the types of their columns."""

    path: str
    types: dict[str, str]
    story: str

    @classmethod
    def of(cls, spark: SparkSession, seed: int, path: Path) -> "World":
        """Writes the files of a seed."""
        draw = random.Random(seed)
        by_spark = draw.random() < 0.6
        # Only Spark writes intervals. Python has no values of those of months, so Spark computes them.
        leaves = (*_LEAVES, "interval day to second") if by_spark else _LEAVES
        types = {"id": "bigint"}
        types |= {f"c{index}": _type(draw, leaves, 2) for index in range(draw.randint(3, 8))}
        if draw.random() < 0.3:
            types |= {"Odd name.x": draw.choice(_LEAVES)}
        partition = draw.choice(["", *_PARTITIONS])
        if partition:
            types["p"] = partition
        rows = [
            (index, *(_value(draw, type_) for name, type_ in types.items() if name not in ("id", "p")))
            + ((draw.choice(_PARTITIONS[partition]),) if partition else ())
            for index in range(draw.randint(1, 60))
        ]
        ddl = ", ".join(f"`{name}` {type_}" for name, type_ in types.items())
        frame = spark.createDataFrame(rows, ddl).repartition(draw.randint(1, 3), "id")
        if by_spark and draw.random() < 0.5:
            months = F.make_ym_interval(F.lit(0), F.nullif(F.col("id").cast("int"), F.lit(3)))
            frame = frame.withColumn("months", months)
        written = _by_spark(spark, draw, frame, path, partition) if by_spark else _by_pyarrow(draw, frame, path)
        return cls(str(path), types, f"seed {seed}: {written}; {ddl}")


def _by_spark(spark: SparkSession, draw: random.Random, frame: DataFrame, path: Path, partition: str) -> str:
    settings = {
        "spark.sql.parquet.outputTimestampType": draw.choice(["INT96", "TIMESTAMP_MICROS"]),
        "spark.sql.parquet.writeLegacyFormat": draw.choice(["true", "false"]),
        "spark.sql.parquet.compression.codec": draw.choice(["snappy", "zstd", "none"]),
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        writer = frame.write.option("parquet.block.size", draw.choice([200, 1 << 27]))
        (writer.partitionBy("p") if partition else writer).parquet(str(path))
    finally:
        for name in settings:
            spark.conf.unset(name)
    return f"Spark, {settings}"


def _by_pyarrow(draw: random.Random, frame: DataFrame, path: Path) -> str:
    table = frame.toArrow()
    strange = draw.random() < 0.5
    for index, field in enumerate(table.schema):
        if strange and pa.types.is_string(field.type):
            table = table.set_column(index, field.name, table.column(index).dictionary_encode())
        elif strange and pa.types.is_binary(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.large_binary()))
        elif strange and pa.types.is_timestamp(field.type):
            cut = table.column(index).cast(pa.timestamp("ms", field.type.tz), safe=False)
            table = table.set_column(index, field.name, cut)
    path.mkdir()
    options: dict[str, Any] = {
        "store_schema": draw.random() < 0.5,
        "use_compliant_nested_type": draw.random() < 0.5,
        "data_page_version": draw.choice(["1.0", "2.0"]),
        "store_decimal_as_integer": draw.random() < 0.5,
        "row_group_size": draw.choice([5, 1000]),
        "use_deprecated_int96_timestamps": False,
    }
    half = table.num_rows // 2
    pq.write_table(table.slice(0, half), path / "one.parquet", **options)
    pq.write_table(table.slice(half), path / "two.parquet", **options)
    (path / "_hidden.parquet").write_text("not a file of data")
    (path / ".part.crc").write_text("nor this")
    (path / "empty.parquet").touch()
    return f"pyarrow, {options}, strange={strange}"


def _type(draw: random.Random, leaves: tuple[str, ...], depth: int) -> str:
    chance = draw.random()
    if not depth or chance < 0.55:
        return draw.choice(leaves)
    if chance < 0.7:
        return f"array<{_type(draw, leaves, depth - 1)}>"
    if chance < 0.8:
        return f"map<{draw.choice(['string', 'int', 'date'])},{_type(draw, leaves, depth - 1)}>"
    return f"struct<a:{_type(draw, leaves, depth - 1)},`B b`:{_type(draw, leaves, depth - 1)}>"


def _value(draw: random.Random, type_: str) -> Any:
    if draw.random() < 0.15:
        return None
    if type_ in _BITS:
        edge = 1 << (_BITS[type_] - 1)
        return draw.choice([0, -1, 7, edge - 1, -edge])
    if type_.startswith("decimal"):
        digits, scale = map(int, type_[8:-1].split(","))
        return Decimal(draw.choice([0, 1, -1, 10**digits - 1, 1 - 10**digits])).scaleb(-scale, Context(prec=50))
    if type_.startswith(("array<", "map<", "struct<")):
        return _nested(draw, type_)
    return {
        "boolean": lambda: draw.random() < 0.5,
        "float": lambda: draw.choice([0.0, -0.0, 1.5, float("nan"), float("inf")]),
        "double": lambda: draw.choice([0.0, -0.0, 1e300, float("nan"), float("-inf")]),
        "string": lambda: draw.choice(["", "a", "straße 🚲", "a\x00b", "x" * 40]),
        "binary": lambda: bytearray(draw.choice([b"", b"\x00\xff", b"abc"])),
        "date": lambda: draw.choice(_DATES),
        "timestamp": lambda: dt.datetime.combine(
            draw.choice(_DATES[1:-1]), dt.time(1, 2, 3, draw.choice([0, 456_000]))
        ),
        "timestamp_ntz": lambda: dt.datetime.combine(draw.choice(_DATES), dt.time(23, 59, 59, draw.choice([0, 1]))),
        "interval day to second": lambda: dt.timedelta(days=draw.randint(-9, 9), microseconds=draw.randint(0, 9)),
    }[type_]()


def _nested(draw: random.Random, type_: str) -> Any:
    inner = _parts(type_[type_.index("<") + 1 : -1])
    if type_.startswith("array<"):
        return [_value(draw, inner[0]) for _ in range(draw.randint(0, 3))]
    if type_.startswith("map<"):
        keys = {"string": ["k", "", "l"], "int": [1, -5], "date": list(_DATES[2:4])}[inner[0]]
        return {key: _value(draw, inner[1]) for key in keys[: draw.randint(0, len(keys))]}
    return tuple(_value(draw, part.partition(":")[2]) for part in inner)


def _parts(text: str) -> list[str]:
    """The parts between the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
