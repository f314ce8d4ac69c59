"""One bad row among good ones, and the ways to handle it.

make demo                          # once: it installs what this needs
.venv/bin/python -m examples.errors
"""

import tempfile
from pathlib import Path

from pyspark.errors import PySparkException

from examples.session import local_session
from spark_client import connect

PLUGIN = '''
import udf_server as udf


@udf.scalar
def share(part: int, whole: int) -> float:
    """How much of the whole the part is."""
    return part / whole
'''


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="remote-udf-errors-"))
    (folder / "shares.py").write_text(PLUGIN)
    spark = local_session(2)
    # This example causes failed tasks, about each of which Spark would log pages.
    spark.sparkContext.setLogLevel("OFF")
    share = (remote := connect(spark, plugins=[str(folder / "shares.py")])).function("share")
    frame = spark.createDataFrame([(1, 4), (3, 0), (1, 2)], "part bigint, whole bigint")
    calls = {"share": share("part", "whole")}

    print("null: the row stays, without a value")
    remote.with_columns(frame, calls, on_error="null").show()

    print("column: the row says what was wrong")
    remote.with_columns(frame, calls, on_error="column").show(truncate=60)

    print("dead letter: the row goes elsewhere, with the reason")
    letters = folder / "letters"
    remote.with_columns(frame, calls, on_error="dead-letter", dead_letter=str(letters)).show()
    spark.read.parquet(str(letters)).select("part", "whole", "_function", "_error.message").show(truncate=60)

    print("a budget: null, unless more than 0 rows fail")
    try:
        remote.with_columns(frame, calls, on_error="null", max_errors=0).collect()
    except PySparkException as error:
        print("   ", next(line for line in str(error).splitlines() if "share" in line).strip())

    print("fail, the default: the job ends with the row's arguments and the remote traceback")
    try:
        remote.with_columns(frame, calls).collect()
    except PySparkException as error:
        print("   ", next(line for line in str(error).splitlines() if "share" in line).strip())
    spark.stop()


if __name__ == "__main__":
    main()
