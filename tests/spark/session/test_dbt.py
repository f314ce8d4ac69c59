"""dbt with dbt-spark's method `session`: models as tables that call registered functions."""

import json
import os
import site
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest

import udf_server as udf
from tests.spark.aggregate.mean import MyMean
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
# Later versions of dbt-core fetch a part of dbt from elsewhere when they are installed.
PACKAGES = ("dbt-spark", "dbt-core<1.12")
FILES = {
    "dbt_project.yml": """
name: shop
version: "1.0"
profile: shop
models: {shop: {+materialized: table}}
""",
    "profiles.yml": """
shop:
  target: here
  outputs:
    here: {type: spark, method: session, schema: shop, host: NA}
""",
    "models/means.sql": "SELECT id % 2 AS k, my_avg(triple(id)) AS mean FROM range(10) GROUP BY id % 2",
    "models/sums.sql": "SELECT * FROM sums(TABLE({{ ref('means') }}) WITH SINGLE PARTITION ORDER BY k)",
    "job.py": """
import json
import sys

from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

from spark_client import connect

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").enableHiveSupport().getOrCreate()
connect(spark, sys.argv[1]).register()
done = dbtRunner().invoke(["run", "--project-dir", ".", "--profiles-dir", "."])
assert done.success, done
found = {name: spark.table("shop." + name).toPandas().to_dict("records") for name in ("means", "sums")}
with open("found.json", "w") as file:
    json.dump(found, file)
""",
}


class MyAvg(MyMean):
    name = "my_avg"


class Sums(udf.ProcessTableFunction):
    """The sum of the means up to each row."""

    returns = "total double"

    def eval(
        self, total: Annotated[udf.ValueView[float], udf.StateHint()],
        rows: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE],
    ):  # fmt: skip
        total.value = (total.value or 0.0) + rows.mean
        yield (total.value,)


@udf.scalar
def triple(x: int) -> int:
    return x * 3


@pytest.fixture
def dbt_python(tmp_path: Path) -> str:
    """A Python with dbt that also has what is installed here; packages of its own come first."""
    environment = tmp_path / "dbt"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = str(environment / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *PACKAGES], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"dbt cannot be installed here: {done.stderr[-300:]}")
    (own,) = (environment / "lib").glob("python*/site-packages")
    (own / "here.pth").write_text("\n".join([*site.getsitepackages(), str(ROOT), str(ROOT / "proto")]))
    return python


@pytest.mark.timeout(900)
def test_models_of_dbt_call_registered_functions(serve, dbt_python: str, tmp_path: Path):
    target = serve(triple, declare_aggregate(MyAvg), declare_process(Sums)).target
    project = tmp_path / "project"
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment["PYSPARK_PYTHON"] = dbt_python
    done = subprocess.run(
        [dbt_python, "job.py", target], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads((project / "found.json").read_text())
    assert sorted(found["means"], key=lambda row: row["k"]) == [{"k": 0, "mean": 12.0}, {"k": 1, "mean": 15.0}]
    assert sorted(row["total"] for row in found["sums"]) == [12.0, 27.0]
