"""Plans scans of Parquet files, also of `remote_parquet('path', ...)` in FROM.

Spark finds the files, the types and the partition columns, so that they are those of `spark.read.parquet`. Workers then
read the files by pyarrow.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from remote_udf.errors import UnsupportedType
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import Identifiers, column_named, identifiers_of
from spark_client.base.targets import require_no_credentials
from spark_client.base.types import arrow_type, passed_type
from spark_client.parquet.conditions import Conditions
from spark_client.parquet.conform import Calendars
from spark_client.parquet.scan import ScanColumn, ScanPlan, Split, over_files
from spark_client.planning.key_columns import sorts
from spark_client.planning.scans import Reader, RowSource, Scan, remember_scan
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.table_calls import put_in_place
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.writers import canonical

__all__ = ["byte_setting", "plan_scan", "put_parquet", "tasks_of"]

_LISTED = ("path", "modificationTime", "length", "content")
"""The columns of Spark's source `binaryFile`, which has a row per file."""
_MUST_BE_FALSE = (
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.parquet.fieldId.read.enabled",
    "spark.sql.parquet.int96TimestampConversion",
)
"""Settings by which Spark's reader does what workers do not."""
_IN_METADATA = ("__CHAR_VARCHAR_TYPE_STRING", "EXISTS_DEFAULT")
"""Metadata by which Spark changes the values of a column: it pads CHAR, and fills in default values."""
_REBASE, _REBASE_INT96 = "spark.sql.parquet.datetimeRebaseModeInRead", "spark.sql.parquet.int96RebaseModeInRead"
_SIZES = (("spark.sql.files.maxPartitionBytes", 1), ("spark.sql.files.openCostInBytes", 0))
"""Settings of sizes, and the least that they may be."""
_BYTES = re.compile(r"([0-9]{1,19})([kmgtp])?b?")
"""A number of bytes, as Spark's JavaUtils.byteStringAs reads it."""
_UNITS = ("", "k", "m", "g", "t", "p")
_FEWEST, _PARALLELISM = "spark.sql.files.minPartitionNum", "spark.sql.leafNodeDefaultParallelism"
_IN_FROM = "remote_parquet"


@dataclass(frozen=True)
class _FileSource(RowSource):
    """Files that workers read."""

    plan: ScanPlan

    @property
    def tasks(self) -> int:
        return len(self.plan.tasks)

    def reader(self, columns: Sequence[int]) -> Reader:
        return partial(over_files, replace(self.plan, output=tuple(columns)))

    def filtered(self, spark: SparkSession, condition: str, columns: Sequence[tuple[str, int | None]]) -> RowSource:
        """The files with one more condition, in which columns have the names of the files."""
        plan, rows = self.plan, Conditions(spark, condition)
        if any(position is not None and plan.columns[position].name != name for name, position in columns):
            raise PlanError("a condition on columns of a scan with other names is left to Spark")
        more, used = rows.of_rows(plan.columns, ())
        if more is None:
            return self
        both = more if plan.condition is None else plan.condition & more
        used = tuple(dict.fromkeys([*plan.condition_columns, *used]))
        return _FileSource(replace(plan, condition=both, condition_columns=used))


def plan_scan(spark: SparkSession, paths: Sequence[str], filter_: str | None = None) -> DataFrame:
    """Return Spark's DataFrame of the files, and record its scan. Raises PlanError, and any error of Spark.

    `filter_` is a condition in SQL on the rows.
    """
    condition = None if filter_ is None else Conditions(spark, filter_)
    for path in paths:
        require_no_credentials(path, "read_parquet")
    frame = spark.read.parquet(*paths)
    schema = frame.schema
    if condition is not None:
        frame = frame.where(condition.sql)
    for name in _MUST_BE_FALSE:
        if (spark.conf.get(name) or "").lower() == "true":
            raise PlanError(f"read_parquet: workers cannot read files as {name}=true requires; use spark.read.parquet")
    identifiers = identifiers_of(spark)
    listing = spark.read.format("binaryFile").load(list(paths))
    partitions = [name for name in listing.columns if name not in _LISTED]
    for part in [] if condition is None else condition.of_files(partitions):
        listing = listing.where(part)
    # Not by its name, which a partition column may have.
    metadata = listing.metadataColumn("_metadata")
    facts = metadata["file_path"], metadata["file_size"], F.unix_millis(metadata["file_modification_time"])
    files = listing.select(*facts, *map(column_named, partitions)).toArrow()
    _require_no_such_partition(files, schema.names, identifiers)
    columns = _columns(schema, listing.schema, partitions, identifiers)
    expression, used = (None, ()) if condition is None else condition.of_rows(tuple(columns.values()), partitions)
    most, open_cost = (byte_setting(name, spark.conf.get(name) or "", least) for name, least in _SIZES)
    plan = ScanPlan(
        files=files,
        tasks=tasks_of(files.column(1).to_pylist(), most, open_cost, _parallelism(spark)),
        columns=tuple(columns.values()),
        output=(),
        calendars=Calendars(datetimes=_is_corrected(spark, _REBASE), int96=_is_corrected(spark, _REBASE_INT96)),
        case_sensitive=identifiers.case_sensitive,
        condition=expression,
        condition_columns=used,
    )
    places = {name: position for position, name in enumerate(columns)}
    return remember_scan(frame, Scan(_FileSource(plan), tuple((name, places.get(name)) for name in schema.names)))


def put_parquet(scope: Scope, node: Node, call: exp.Anonymous) -> None:
    """Replace a call by the DataFrame of the files, as `RemoteSession.read_parquet` reads them."""
    paths, condition = [], None
    for argument in call.expressions:
        value = argument.expression if isinstance(argument, exp.Kwarg) else argument
        if not isinstance(value, exp.Literal) or not value.is_string:
            raise PlanError(f"{_IN_FROM} takes paths and filter => as texts, not {canonical(argument)}")
        if value is argument:
            paths.append(str(value.this))
        elif argument.this.name.lower() != "filter":
            raise PlanError(f"{_IN_FROM} has no parameter {argument.this.name}, only filter")
        elif condition is not None:
            raise PlanError(f"{_IN_FROM} takes one filter; join the conditions by AND")
        else:
            condition = str(value.this)
    if not paths:
        raise PlanError(f"{_IN_FROM} takes at least one path")
    frame = plan_scan(scope.spark, paths, condition)
    scope.stages.append(f"{_IN_FROM}: workers read columns for remote aggregates, Spark reads for all else")
    put_in_place(scope, node, frame, _IN_FROM)


def _columns(
    schema: T.StructType, listed: T.StructType, partitions: Sequence[str], identifiers: Identifiers
) -> Mapping[str, ScanColumn]:
    """The columns that workers can read, by name."""
    at = {identifiers.key(name): position for position, name in enumerate(partitions, 3)}
    types = {identifiers.key(field.name): field.dataType for field in listed}
    columns = {}
    for field in schema:
        key = identifiers.key(field.name)
        partition = at.get(key)
        if any(mark in field.metadata for mark in _IN_METADATA):
            continue
        if partition is not None and types[key] != field.dataType:
            continue
        try:
            type_ = arrow_type(passed_type(field.dataType), f"column {field.name!r}")
        except UnsupportedType:
            continue
        columns[field.name] = ScanColumn(field.name, type_, partition, sorts(field.dataType))
    return columns


def _require_no_such_partition(files: pa.Table, names: Sequence[str], identifiers: Identifiers) -> None:
    """Raise PlanError if a column of the listing hides a partition column of the same name."""
    hidden = identifiers.keys(_LISTED) & identifiers.keys(names)
    if not hidden:
        return
    for path in files.column(0).to_pylist():
        for folder in posixpath.dirname(unquote(path)).split("/"):
            name, is_partition, _ = folder.partition("=")
            if is_partition and identifiers.key(name) in hidden:
                raise PlanError(f"read_parquet: a partition column must not be named {name!r}; use spark.read.parquet")


def _is_corrected(spark: SparkSession, rebase_mode: str) -> bool:
    """Whether Spark does not convert old dates of files of unknown origin. It ignores the case of the mode."""
    return (spark.conf.get(rebase_mode) or "").upper() == "CORRECTED"


def _parallelism(spark: SparkSession) -> int:
    """The number of tasks that Spark wants for a read."""
    given = spark.conf.get(_FEWEST, None) or spark.conf.get(_PARALLELISM, None)
    if given:
        return int(given)
    # A session of Spark Connect has no SparkContext that could be asked; a range has a partition for each core.
    last = (
        spark.range(1 << 16).select(F.spark_partition_id().alias("number")).agg(F.max("number").alias("last")).first()
    )
    return 1 if last is None else int(last["last"]) + 1


def byte_setting(name: str, text: str, least: int = 0) -> int:
    """The number of bytes that Spark reads in a setting such as `128MB`, `134217728b` or `1g`. Raises PlanError."""
    match = _BYTES.fullmatch(text.strip().lower())
    number = int(match[1]) * 1024 ** _UNITS.index(match[2] or "") if match else -1
    if number < least:
        raise PlanError(
            f"read_parquet: {name}={text!r} is not a size of at least {least} bytes: write a whole number, and perhaps "
            "one of the units b, k, m, g, t and p, such as 128m"
        )
    return number


def tasks_of(sizes: Sequence[int], most: int, open_cost: int, parallelism: int) -> tuple[tuple[Split, ...], ...]:
    """The splits of each task, for files of these sizes, divided as by Spark.

    Large files are cut, small ones share a task. `most` is Spark's `spark.sql.files.maxPartitionBytes`, `open_cost` its
    `spark.sql.files.openCostInBytes`, and `parallelism` the wanted number of tasks.
    """
    total = sum(sizes) + len(sizes) * open_cost
    most = max(min(most, max(open_cost, total // parallelism)), 1)
    splits = [
        Split(file, start, min(start + most, size)) for file, size in enumerate(sizes) for start in range(0, size, most)
    ]
    tasks: list[list[Split]] = []
    room = 0
    for split in sorted(splits, key=lambda split: split.start - split.end):
        length = split.end - split.start
        if not tasks or length > room:
            tasks.append([])
            room = most
        tasks[-1].append(split)
        room -= length + open_cost
    return tuple(tuple(task) for task in tasks)
