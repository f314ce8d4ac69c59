"""Fixtures that tests with Spark share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.process_streams import PROVIDER, ROCKSDB


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Keeps state in RocksDB in one partition, because each partition has a state store, which starts slowly."""
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set(PROVIDER, before)
    spark.conf.set("spark.sql.shuffle.partitions", "2")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Returns the folder whose files are a stream."""
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


@pytest.fixture
def zone(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Sets the session's time zone until the test ends."""
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda name: spark.conf.set("spark.sql.session.timeZone", name)
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Has Spark compile expressions, for `spark.catalog` cannot list tables without it; see `QUICK` of the Makefile."""
    before = spark.conf.get("spark.sql.codegen.factoryMode")
    spark.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    yield
    spark.conf.set("spark.sql.codegen.factoryMode", before)
