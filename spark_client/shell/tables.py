"""Tables: registers files as temporary views."""

import glob
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_client.base.errors import PlanError

__all__ = ["add_table"]

_READERS: Mapping[str, Callable[[SparkSession, str], DataFrame]] = {
    ".csv": lambda spark, path: spark.read.csv(path, header=True, inferSchema=True),
    ".tsv": lambda spark, path: spark.read.csv(path, header=True, inferSchema=True, sep="\t"),
    ".json": lambda spark, path: spark.read.json(path),
    ".jsonl": lambda spark, path: spark.read.json(path),
    ".orc": lambda spark, path: spark.read.orc(path),
    ".parquet": lambda spark, path: spark.read.parquet(path),
}
_PACKED = {".bz2", ".gz", ".zst"}


def add_table(spark: SparkSession, told: str) -> str:
    """Create a view for "name=path", or for "path" with the file's name, and return the view's name.

    A path is a file, a pattern such as "logs/*.json", or a folder with files of one format, which their ending
    determines. CSV files have a header. Raises PlanError if there is no file or the format is unknown.
    """
    name, separator, path = told.partition("=")
    if not separator:
        path, name = told, re.sub(r"\W", "_", Path(told).name.split(".")[0])
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise PlanError(f"{name!r} is not a valid table name: give one, as in flights={path}")
    _READERS[_ending(path)](spark, path).createOrReplaceTempView(name)
    return name


def _ending(path: str) -> str:
    given = Path(path)
    files = [given]
    if given.is_dir():
        files = [file for file in sorted(given.rglob("*")) if file.is_file() and not file.name.startswith(("_", "."))]
    elif "://" not in path and not glob.glob(path):  # noqa: PTH207 - Path().glob takes no absolute pattern
        raise PlanError(f"there is no file {path}")
    endings = {_of_name(file) for file in files}
    if len(endings) != 1 or not endings <= set(_READERS):
        found = ", ".join(sorted(endings)) or "no files"
        raise PlanError(f"{path}: a table is read from files that end in one of {', '.join(_READERS)}; found {found}")
    return endings.pop()


def _of_name(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in _PACKED]
    return suffixes[-1] if suffixes else ""
