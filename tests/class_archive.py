"""Makes an archive of the classes that Spark's JVM loads: `python -m tests.class_archive build/spark.jsa`.

With it (class data sharing) a JVM verifies no class files: it starts with 3.3 s of CPU time instead of 5.9 s, and its
first query takes 3.4 s instead of 5.5 s. `tests/conftest.py` uses the archive if it is there. A JVM that it does not
fit ignores it.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql import Window as W
from pyspark.sql import functions as F

STATES = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def use(spark: SparkSession, folder: Path) -> None:
    """Has Spark load what most tests need: Parquet, Arrow, SQL and a stream with state."""
    rows = spark.createDataFrame([(i % 3, i, f"{i}") for i in range(20)], "k int, n bigint, t string")
    rows.write.parquet(str(folder / "rows"))
    read = spark.read.parquet(str(folder / "rows")).mapInArrow(same, "k int, n bigint, t string")
    read.createOrReplaceTempView("rows")
    spark.sql("SELECT k, sum(n) OVER (PARTITION BY k ORDER BY n) FROM rows JOIN range(5) r ON rows.k = r.id").collect()
    read.groupBy("k").agg(F.max("t"), F.collect_list("n")).orderBy("k").toPandas()
    read.withColumn("before", F.lag("n").over(W.partitionBy("k").orderBy("n"))).collect()
    for provider in ("", ROCKSDB):
        if provider:
            spark.conf.set(STATES, provider)
        stream = spark.readStream.schema(rows.schema).parquet(str(folder / "rows")).groupBy("k").count()
        sink = stream.writeStream.format("memory").queryName("counted").outputMode("complete")
        query = sink.option("checkpointLocation", str(folder / f"to{provider}")).trigger(availableNow=True).start()
        query.awaitTermination()


def main(archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={archive}"
    )
    with tempfile.TemporaryDirectory() as folder:
        conf = SparkConf().setMaster("local[2]").setAppName("classes").set("spark.ui.enabled", "false")
        conf.set("spark.sql.shuffle.partitions", "1").set("spark.driver.bindAddress", "127.0.0.1")
        conf.set("spark.sql.warehouse.dir", f"{folder}/warehouse")
        gateway = launch_gateway(conf)
        spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
        spark.sparkContext.setLogLevel("OFF")
        use(spark, Path(folder))
        spark.stop()
    process = gateway.proc
    process.stdin.close()  # the JVM writes the archive when it ends, and it ends with its input
    process.wait(120)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
