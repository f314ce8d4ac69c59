"""A warning for a driver whose workers run a Python without the libraries."""

import sys
import venv
from pathlib import Path

import pytest

from spark_client.base.requirements import WORKERS_NEED, warn_of_worker_python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python without libraries, by the name that Spark calls."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python3"


@pytest.fixture(autouse=True)
def own_path_only(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_workers_of_another_python_without_the_libraries_are_named(bare, caplog):
    own = Path(sys.executable).parent
    for environment in ({"PYSPARK_PYTHON": str(bare)}, {"PATH": f"{bare.parent}:{own}"}):
        caplog.clear()
        warn_of_worker_python("local[2]", environment)
        [told] = [record.message for record in caplog.records]
        assert told.startswith(
            f"Spark's workers run {bare}, which lacks {', '.join(WORKERS_NEED)}, so remote calls will fail"
        )
        assert f"set PYSPARK_PYTHON={sys.executable} before" in told


def test_no_warning_without_reason(bare, caplog):
    own = Path(sys.executable)
    warn_of_worker_python("local", {"PYSPARK_PYTHON": str(own)})
    warn_of_worker_python("local", {"PATH": str(own.parent)})
    warn_of_worker_python("spark://host:7077", {"PYSPARK_PYTHON": str(bare)})  # the executors' machines have it
    warn_of_worker_python("local", {"PYSPARK_PYTHON": "/no/such/python"})  # Spark itself says so
    assert caplog.records == []
