"""Random Parquet files of every type, from a seed, written by Spark and by pyarrow in their various forms."""

import datetime as dt
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
    table = frame.toArrow().combine_chunks()
    options: dict[str, Any] = {
        "store_schema": draw.random() < 0.5,
        "use_compliant_nested_type": draw.random() < 0.5,
        "data_page_version": draw.choice(["1.0", "2.0"]),
        "store_decimal_as_integer": draw.random() < 0.5,
        "row_group_size": draw.choice([5, 1000]),
        "use_deprecated_int96_timestamps": False,
    }
    half = table.num_rows // 2
    strange = draw.random() < 0.5
    # Directories with the name of a column of the files, whose values then do not count.
    hidden = draw.random() < 0.5 and "p" in table.column_names and pa.types.is_int32(table.schema.field("p").type)
    for name, part in (("one", table.slice(0, half)), ("two", table.slice(half))):
        if strange:
            part = _changed(part, lambda array: _stored(draw, array))
        if strange and name == "two":
            part = _changed(part, lambda array: _narrower(draw, array))
        folder = path / f"p={len(name) + half % 3}" if hidden else path
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(part, folder / f"{name}.parquet", **options)
    (path / "_hidden.parquet").write_text("not a file of data")
    (path / ".part.crc").write_text("nor this")
    (path / "empty.parquet").touch()
    return f"pyarrow, {options}, strange={strange}, hidden={hidden}"


def _changed(table: pa.Table, change: Callable[[pa.Array], pa.Array]) -> pa.Table:
    """The table with other forms of all columns but `id`."""
    columns = [table.column(0), *(change(column.combine_chunks()) for column in table.columns[1:])]
    return pa.table(columns, table.column_names)


def _stored(draw: random.Random, array: pa.Array) -> pa.Array:
    """The values in another Arrow type, which Spark reads as the same one. pyarrow finds it in a stored schema."""
    type_ = array.type
    if pa.types.is_list(type_):
        return _listed(draw, array, _stored(draw, array.flatten()))
    if pa.types.is_string(type_):
        other = draw.choice([pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), type_)])
        return array.dictionary_encode() if pa.types.is_dictionary(other) else array.cast(other)
    if pa.types.is_binary(type_):
        return array.cast(draw.choice([type_, pa.large_binary(), pa.binary_view()]))
    if pa.types.is_timestamp(type_):
        return array.cast(pa.timestamp("ms", type_.tz), safe=False)
    return array


def _listed(draw: random.Random, array: pa.Array, values: pa.Array) -> pa.Array:
    """The lists with these values, in one of the forms of lists."""
    lengths = pc.list_value_length(array).fill_null(0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    mask = array.is_null()
    if draw.random() < 0.5:
        return pa.ListArray.from_arrays(offsets, values, mask=mask)
    return pa.ListViewArray.from_arrays(offsets.slice(0, len(array)), lengths, values, mask=mask)


_NARROWER = {
    pa.int64(): [pa.int8(), pa.int32(), pa.uint16(), pa.null()],
    pa.int32(): [pa.int16(), pa.uint8(), pa.null()],
    pa.float64(): [pa.float32(), pa.int32(), pa.null()],
    pa.decimal128(18, 4): [pa.int32(), pa.decimal128(7, 2)],
    pa.decimal128(38, 10): [pa.int64(), pa.decimal128(7, 2)],
    pa.timestamp("us"): [pa.date32()],
    pa.date32(): [pa.null()],
}
"""The types of a later file that Spark widens to that of the first one."""


def _narrower(draw: random.Random, array: pa.Array) -> pa.Array:
    """Perhaps other values, of a type from which Spark widens. The first file decides the type of the column."""
    if array.type not in _NARROWER or draw.random() < 0.5:
        return array
    type_ = draw.choice(_NARROWER[array.type])
    values = [draw.choice([None] if pa.types.is_null(type_) else [0, 1, 99, None]) for _ in range(len(array))]
    return pa.array(values, type_)


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
