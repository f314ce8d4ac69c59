"""Writes DataFrames to Parquet files from Spark's Python workers, so that rows do not return to the JVM.

Three jobs: one task claims the path, the tasks of the frame write into a staging directory, and one task publishes the
files of the attempts whose rows Spark has accepted. All of them run in workers, because only those need access to the
files.
"""

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar, get_args

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from remote_udf.durations import parse_seconds
from remote_udf.errors import InvalidOption, UnsupportedType
from remote_udf.raw_texts import replaced
from spark_client.base.errors import PlanError, WriteFailed
from spark_client.base.identifiers import identifiers_of
from spark_client.base.job_tags import JobTags
from spark_client.base.targets import require_no_credentials
from spark_client.base.types import arrow_type, passed_type, spark_type
from spark_client.executor.scalar.dead_letter import SPARK_SCHEMA
from spark_client.parquet.committing import (
    FAILED,
    BeginPlan,
    CommitPlan,
    RecoverPlan,
    Replaced,
    abort,
    begin,
    commit,
    recover,
)
from spark_client.parquet.output import FILE_COLUMNS, OutputFile, WritePlan, write_files
from spark_client.parquet.staging import Staging
from spark_client.planning.key_columns import sorts
from spark_client.planning.operators import Batches, apply_after_operator, apply_operator

__all__ = ["FILES", "Mode", "ParquetFile", "WriteOptions", "write"]

FILES = T.StructType([T.StructField(field.name, spark_type(field.type)) for field in FILE_COLUMNS])
Mode = Literal["error", "append", "overwrite", "ignore"]
Plan = TypeVar("Plan")

_SPARK_VERSION = "org.apache.spark.version"
"""The key in the metadata of a Parquet file under which Spark stores its version: without one,
`spark.sql.parquet.datetimeRebaseModeInRead` decides how old dates are read."""
_CODEC_SETTING, _OVERWRITE_SETTING = "spark.sql.parquet.compression.codec", "spark.sql.sources.partitionOverwriteMode"
_CODECS = {"uncompressed": "none", "lz4_raw": "lz4"}
"""The names of pyarrow for codecs that Spark names differently."""
_WRITTEN_CODECS = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")
_PATH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:(//[^/]*(?=/)|(?!//)))?/+[^/].*")
_IN_NAMES = (T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.StringType, T.DateType)
"""The types of partition columns: those whose values have one text."""


class ParquetFile(NamedTuple):
    """A file that was written: its path below that of the write, its rows and its bytes."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class WriteOptions:
    """What a caller asks for, beside the path; see `RemoteSession.write_parquet`."""

    mode: Mode
    partition_by: Sequence[str]
    compression: str | None
    row_group_rows: int


def write(spark: SparkSession, frame: DataFrame, path: str, options: WriteOptions) -> list[ParquetFile]:
    """Write the frame. Raises PlanError before anything runs, WriteFailed, and any error of the query."""
    if options.mode not in get_args(Mode):
        raise PlanError(f"write_parquet: mode {options.mode!r}: expected one of {', '.join(get_args(Mode))}")
    if frame.isStreaming:
        raise PlanError("write_parquet: the frame is a stream; call write_parquet in a function for foreachBatch")
    staging = Staging(_checked_path(path), uuid.uuid4().hex)
    plan = _plan(spark, frame, staging, options)
    committing = False
    tags, tag = JobTags(spark), f"remote-udf-write-{staging.write}"
    try:
        with tags.tagging(tag):
            (answer,) = run_once(spark, begin, BeginPlan(staging, options.mode in ("error", "ignore")))
            if answer == "ready":
                rows = apply_after_operator(frame, write_files, plan, FILES).collect()
        if answer == "ready":
            files = tuple(OutputFile(*row) for row in rows)
            committing = True
            run_once(spark, commit, CommitPlan(plan, files, _replaced(spark, options)))
    except BaseException as error:
        # Only an error of the task itself says that no attempt is running: after an interrupt the task may go on.
        if committing and not isinstance(error, PythonException):
            error.add_note(
                f"write_parquet: the commit of {staging.write} may be running, so nothing was cleaned up. If the next "
                f"write to {path!r} is refused, its message says what to do."
            )
            raise
        _clean_up(spark, staging, tags, tag)
        raise
    if answer == "exists" and options.mode == "ignore":
        return []
    if answer == "exists":
        raise WriteFailed(f"write_parquet: {path!r} has files; write elsewhere, or with another mode")
    if answer != "ready":
        raise WriteFailed(f"write_parquet: {answer}")
    _refresh(spark, path)
    return [ParquetFile(f"{file.folder}/{file.name}".lstrip("/"), file.rows, file.bytes) for file in files]


def recovered(spark: SparkSession, path: str, unchanged_for: str) -> list[str]:
    """End writes whose driver was killed; see `RemoteSession.recover_parquet`."""
    try:
        plan = RecoverPlan(_checked_path(path), parse_seconds(unchanged_for), time.time())
    except InvalidOption as error:
        raise PlanError(f"recover_parquet: unchanged_for: {error}") from None
    answers = run_once(spark, recover, plan)
    if answers and answers[0].startswith(FAILED):
        raise WriteFailed(answers[0].removeprefix(FAILED))
    _refresh(spark, path)
    return answers


def _refresh(spark: SparkSession, path: str) -> None:
    # Spark may have no file system for the path, and so no caches. It says so by errors of many classes.
    with contextlib.suppress(Exception):
        spark.catalog.refreshByPath(path)


def _clean_up(spark: SparkSession, staging: Staging, tags: JobTags, tag: str) -> None:
    """End a write that has failed. The reason of its failure is more useful than that of a failed clean-up."""
    try:
        # After an interrupt its tasks may go on, and hold all places that the task of the clean-up can have.
        with contextlib.suppress(Exception):
            tags.cancel(tag)
        with contextlib.suppress(Exception):
            run_once(spark, abort, staging)
    except BaseException as error:
        error.add_note(
            f"write_parquet: the clean-up of {staging.write} was interrupted. If the next write to {staging.path!r} is "
            "refused, its message says what to do."
        )
        raise


def run_once(spark: SparkSession, run: Callable[[Plan, Batches], Batches], plan: Plan) -> list[str]:
    """Run an operator over one row, and return its answers."""
    rows = apply_operator(spark.range(0, 1, 1, 1), run, plan, "answer string").collect()
    return [str(row["answer"]) for row in rows]


def _checked_path(path: str) -> str:
    require_no_credentials(path, "write_parquet")
    if not _PATH.fullmatch(path):
        raise PlanError(f"write_parquet: path {path!r}: expected an absolute path, or a URI such as s3://bucket/folder")
    return path.rstrip("/")


def _plan(spark: SparkSession, frame: DataFrame, staging: Staging, options: WriteOptions) -> WritePlan:
    fields = frame.schema.fields
    names = [field.name for field in fields]
    identifiers = identifiers_of(frame)
    twice = identifiers.repeated(names)
    if twice:
        raise PlanError(f"write_parquet: several columns have the same name: {', '.join(twice)}")
    partitions = []
    for name in options.partition_by:
        found = next((at for at, each in enumerate(names) if identifiers.same(each, name)), None)
        if found is None:
            raise PlanError(f"partition_by: there is no column {name!r}; the frame has {', '.join(names)}")
        type_ = fields[found].dataType
        if not isinstance(type_, _IN_NAMES) or not sorts(type_):
            raise PlanError(
                f"partition_by: column {name!r} has type {type_.simpleString()}; expected boolean, integers, string or "
                "date, whose values have one text. Cast it to string"
            )
        # The name as it is given, as Spark does, even if its case is not that of the column.
        partitions.append((found, name))
    places = {at for at, _ in partitions}
    if len(places) < len(partitions):
        raise PlanError(f"partition_by: a column is named twice in {', '.join(options.partition_by)}")
    columns = tuple(at for at in range(len(fields)) if at not in places)
    if not columns:
        raise PlanError("partition_by: at least one column must be left for the files")
    if options.row_group_rows < 1:
        raise PlanError(f"row_group_rows: expected at least 1, got {options.row_group_rows}")
    return WritePlan(
        staging, _schema(spark, [fields[at] for at in columns]), columns, tuple(partitions),
        _codec(spark, options.compression), options.row_group_rows,
    )  # fmt: skip


def _schema(spark: SparkSession, fields: Sequence[T.StructField]) -> pa.Schema:
    """The schema of the files, with that of Spark in its metadata, because Parquet cannot express all Spark types."""
    written = []
    for field in fields:
        where = f"column {field.name!r}"
        try:
            type_ = arrow_type(passed_type(field.dataType), where)
        except UnsupportedType:
            type_ = pa.null()
        if _has_void(type_):
            raise PlanError(f"write_parquet: {where} has type {field.dataType.simpleString()}, which cannot be written")
        # Spark reads times in microseconds only.
        written.append(pa.field(field.name, replaced(type_, pa.time64("ns"), pa.time64("us"))))
    metadata = {SPARK_SCHEMA: T.StructType(list(fields)).json(), _SPARK_VERSION: spark.version}
    return pa.schema(written, metadata)


def _has_void(type_: pa.DataType) -> bool:
    if pa.types.is_null(type_) or (pa.types.is_struct(type_) and type_.num_fields == 0):
        return True
    return any(_has_void(type_.field(index).type) for index in range(type_.num_fields))


def _codec(spark: SparkSession, given: str | None) -> str:
    name = (given or spark.conf.get(_CODEC_SETTING) or "snappy").lower()
    codec = _CODECS.get(name, name)
    # What Spark calls lz4 is a form of Hadoop's that pyarrow does not write.
    if codec not in _WRITTEN_CODECS or (given is None and name == "lz4"):
        source = _CODEC_SETTING if given is None else "compression"
        raise PlanError(f"{source}: codec {name!r} cannot be written: expected one of {', '.join(_WRITTEN_CODECS)}")
    return codec


def _replaced(spark: SparkSession, options: WriteOptions) -> Replaced:
    if options.mode != "overwrite":
        return Replaced.NONE
    dynamic = (spark.conf.get(_OVERWRITE_SETTING) or "").upper() == "DYNAMIC"
    return Replaced.WRITTEN_FOLDERS if options.partition_by and dynamic else Replaced.ALL
