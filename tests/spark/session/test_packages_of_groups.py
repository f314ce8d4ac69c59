"""Two versions of numpy on one server, called in one SELECT."""

import json
import subprocess
import sys

import pytest

from spark_client import connect
from tests.udf_server.serving.test_groups import serving

pytestmark = pytest.mark.long

PLUGIN = """# /// script
# dependencies = [{0}]
# ///
import numpy as np
import udf_server as udf


@udf.scalar(name="{1}")
def doubled(x: int) -> str:
    return f"numpy {{np.__version__.split('.')[0]}}: {{np.int64(x) * 2}}"
"""


class Site:
    """A folder with the settings of a server with two groups."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "server.toml"
        text = "port = 0\nmetrics_port = 0\nprocesses = 1\nentry_points = false\n"
        text += f"environments = {json.dumps(str(folder / 'environments'))}\n"
        for name, versions in (("before", '"numpy<2", "pyarrow<24"'), ("since", '"numpy>=2"')):
            (folder / f"{name}.py").write_text(PLUGIN.format(versions, f"{name}_two"))
            text += f'[groups.{name}]\nplugins = ["{folder}/{name}.py"]\n'
        self.path.write_text(text)


def test_two_versions_of_numpy_are_called_in_one_select(spark, tmp_path):
    pytest.importorskip("uv")
    site = Site(tmp_path)
    command = [sys.executable, "-m", "udf_server", "sync", "--config", str(site.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "numpy was not found" in done.stderr or "Failed to fetch" in done.stderr:
        pytest.skip("needs an index with numpy")
    assert done.returncode == 0, done.stderr
    with serving(site, site.path) as (_, ready):
        remote = connect(spark, ready["target"])
        query = "SELECT before_two(id) AS a, since_two(id) AS b FROM range(3) ORDER BY id"
        found = [tuple(row) for row in remote.sql(query).collect()]
    assert found == [(f"numpy 1: {2 * x}", f"numpy 2: {2 * x}") for x in range(3)]
