"""Tables: registers files as temporary views."""

import glob
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_client.base.errors import PlanError
from spark_client.base.targets import require_no_credentials

__all__ = ["add_table"]


def _delimited(spark: SparkSession, path: str, separator: str) -> DataFrame:
    """Read what RFC 4180 describes: quotes are doubled, a quoted value may have line breaks, nothing else escapes."""
    return spark.read.csv(path, sep=separator, header=True, inferSchema=True, multiLine=True, quote='"', escape='"')


_READERS: Mapping[str, Callable[[SparkSession, str], DataFrame]] = {
    ".csv": lambda spark, path: _delimited(spark, path, ","),
    ".tsv": lambda spark, path: _delimited(spark, path, "\t"),
    ".json": lambda spark, path: spark.read.json(path),
    ".jsonl": lambda spark, path: spark.read.json(path),
    ".orc": lambda spark, path: spark.read.orc(path),
    ".parquet": lambda spark, path: spark.read.parquet(path),
}
_PACKED = {".bz2", ".gz", ".zst"}


def add_table(spark: SparkSession, told: str) -> str:
    """Create a view for "name=path", or for "path" with the file's name, and return the view's name.

    A path is a file, a pattern such as "logs/*.json", or a folder with files of one format, which their ending
    determines. CSV and TSV files have a header, and are read as RFC 4180 says. Raises PlanError if there is no file or
    the format is unknown.
    """
    name, separator, path = told.partition("=")
    for each in (told, path):
        require_no_credentials(each, "a table")
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
