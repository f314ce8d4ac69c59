"""Version pins: the versions with which a streaming query began, stored in its checkpoint directory."""

from collections.abc import Mapping

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from remote_udf.functions import version_key
from spark_client.base.errors import PlanError
from spark_client.functions.directory import Functions

__all__ = ["pinned"]

FOLDER = "remote_udf_versions"
_SCHEMA = "name string, version string"


def pinned(spark: SparkSession, checkpoint: str, functions: Functions) -> Functions:
    """The functions; a name without a version means the version that it had when the checkpoint was first used.

    A name that is new to the checkpoint is pinned to its current version. Pins are JSON files in
    `<checkpoint>/remote_udf_versions`, which Spark writes and never changes. To use another version, remove the folder
    or request "name@version". If two drivers pin one name at the same time, the lower version is used.

    Raises PlanError if the files in the folder are not pins, and Spark's error if it cannot read or write them.
    """
    path = f"{checkpoint.rstrip('/')}/{FOLDER}"
    pins = _read(spark, path)
    if new := {name: version for name, version in functions.versions.items() if name not in pins}:
        spark.createDataFrame(list(new.items()), _SCHEMA).coalesce(1).write.mode("append").json(path)
    return Functions(functions, {**functions.versions, **pins}, functions.weights, functions.ledger)


def _read(spark: SparkSession, path: str) -> Mapping[str, str]:
    try:
        rows = spark.read.schema(_SCHEMA).json(path).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return {}
    pins: dict[str, str] = {}
    for row in rows:
        try:
            pins[row.name] = min(row.version, pins.get(row.name, row.version), key=version_key)
        except (AttributeError, ValueError) as error:
            raise PlanError(f"{path} does not hold versions of functions: {row.asDict()}") from error
    return pins
