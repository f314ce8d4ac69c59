"""What the script of a case needs: the Spark session, the remote session, tables, and the comparison."""

import datetime as dt
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, StringType, StructField, StructType

from spark_client import Window, connect, desc
from spark_client import windows as w
from tests.differential.compare import difference, outcome
from tests.spark_connect import connect_session

__all__ = [
    "F", "SparkWindow", "Window", "clock", "compare", "configure", "desc", "estimated", "inf", "nan", "remote", "spark",
    "streamed", "table", "utc", "w",
]  # fmt: skip

os.environ["TZ"] = "UTC"  # in UTC, different instants are collected as different values
time.tzset()
CONNECT = "DIFFERENTIAL_CONNECT"
"""If it is set to 1 in the environment, all queries use Spark Connect."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_PLAN = "spark.remoteudf.bundled-agg.aggregate-plan"
"""If it is `auto`, Spark counts the rows of tables, on which the plan then depends."""
STORED: dict[str, tuple[DataType, str]] = {
    "interval year to month": (IntegerType(), "make_ym_interval(0, {})"),
    "variant": (StringType(), "parse_json({})"),
}
"""By type: the type in which values are stored, and the expression that converts them."""
nan, inf = float("nan"), float("inf")


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    over_connect = os.environ.get(CONNECT) == "1"
    builder = SparkSession.builder
    conf = {
        "spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
        "spark.default.parallelism": "1", "spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "false", "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.driver.memory": "1500m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.timezone=UTC",
        "spark.sql.warehouse.dir": tempfile.mkdtemp(prefix="differential-"), "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB, "spark.sql.timeType.enabled": "true",
    }  # fmt: skip
    for key, value in conf.items():
        builder = builder.config(key, value)
    builder = builder.appName("differential")
    if over_connect:
        return connect_session(builder)
    session = builder.master("local[2]").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


spark = _session()
remote = connect(spark, plugins=["tests.differential.plugin", "udf_process"])
remote.register()
_changed: dict[str, str | None] = {}
_folders: list[Path] = []
_counted: list[DataFrame] = []


def configure(conf: Mapping[str, str]) -> None:
    """Apply the Spark settings of a case, and reset those of the previous case."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)
    while _counted:
        _counted.pop().unpersist()
    for key, before in _changed.items():
        spark.conf.unset(key) if before is None else spark.conf.set(key, before)
    _changed.clear()
    _set(conf)


def _set(conf: Mapping[str, str]) -> None:
    for key, value in conf.items():
        _changed.setdefault(key, spark.conf.get(key, None))
        spark.conf.set(key, value)


def table(name: str, ddl: str, parts: Sequence[Sequence[tuple[Any, ...]]]) -> DataFrame:
    """Create a view of the rows, with a partition for each of the parts."""
    fields = StructType.fromDDL(ddl).fields
    stored = [STORED.get(field.dataType.simpleString(), (field.dataType, "{}")) for field in fields]
    given = StructType([StructField(f.name, s[0], f.nullable) for f, s in zip(fields, stored, strict=True)])
    frames = [spark.createDataFrame(list(part), given) for part in parts]
    frame = frames[0]
    for other in frames[1:]:
        frame = frame.unionAll(other)
    names = ["`" + field.name.replace("`", "``") + "`" for field in fields]
    frame = frame.selectExpr(*(f"{s[1].format(n)} AS {n}" for s, n in zip(stored, names, strict=True)))
    if spark.conf.get(_PLAN, None) == "auto":
        _counted.append(frame.cache())
        frame.count()
    frame.createOrReplaceTempView(name)
    return frame


def streamed(
    ddl: str, files: Sequence[Sequence[tuple[Any, ...]]], delay: str, stops: Sequence[int],
    query: Callable[[], DataFrame], restarted: Mapping[str, str] = MappingProxyType({}),
) -> DataFrame:  # fmt: skip
    """The rows of a streaming query over the view `s`, to which files are added.

    The query is stopped before each of the files numbered in `stops`, and started again from its checkpoint, with the
    settings `restarted`.
    """
    folder = Path(tempfile.mkdtemp(prefix="differential-"))
    _folders.append(folder)
    arriving = folder / "in"
    arriving.mkdir()
    for first, end in itertools.pairwise([0, *stops, len(files)]):
        if first:
            _set(restarted)
        for number, rows in enumerate(files[first:end], first):
            path = arriving / f"{number:03}.json"
            path.write_text("".join(json.dumps(_as_json(ddl, row)) + "\n" for row in rows))
            os.utime(path, (1_700_000_000 + number,) * 2)
        source = spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).json(str(arriving))
        source.withWatermark("at", delay).createOrReplaceTempView("s")
        frame = query()
        writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
        started = writer.option("checkpointLocation", str(folder / "state")).trigger(availableNow=True).start()
        try:
            started.awaitTermination()
        finally:
            started.stop()
    return spark.read.schema(frame.schema).parquet(str(folder / "out"))


def _as_json(ddl: str, row: tuple[Any, ...]) -> dict[str, Any]:
    names = [column.split()[0] for column in ddl.split(", ")]
    texts = [each.isoformat() if isinstance(each, dt.datetime) else each for each in row]
    return {name: text for name, text in zip(names, texts, strict=True) if text is not None}


def estimated(text: str, *args: Any, **fields: Any) -> DataFrame:
    """The query, after an estimate of its calls, which must neither fail nor change it."""
    remote.explain(text, *args, estimate=True, **fields)
    return remote.sql(text, *args, **fields)


def utc(text: str) -> dt.datetime:
    """An instant."""
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def clock(text: str) -> dt.datetime:
    """A local time without a time zone."""
    return dt.datetime.fromisoformat(text)


def compare(ours: Callable[[], Any], sparks: Callable[[], Any], *, ordered: bool = False) -> None:
    """Print both results, and whether they differ."""
    found, expected = outcome(ours), outcome(sparks)
    print("DIFFERENT:" if (what := difference(found, expected, ordered=ordered)) else "the same", what)
    print("remote-udf:", found.shown)
    print("Spark:     ", expected.shown)
