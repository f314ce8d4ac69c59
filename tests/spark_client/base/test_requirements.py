"""What a job needs in its Python: one sentence for each package that is missing or of another version."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from spark_client.base import requirements

ROOT = Path(__file__).parents[3]
REFUSED = """
import sys, types
{before}
try:
    from spark_client import connect
except ImportError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("sys.modules['sqlglot'] = None", "sqlglot not installed for {python}: a Spark job needs pip install"),
        ("sys.modules['sqlglot'] = sys.modules['pandas'] = None", "pandas and sqlglot not installed for"),
        ("import pyspark; pyspark.__version__ = '4.0.1'", "remote-udf needs PySpark 4.1 or later, found 4.0.1: pip"),
        ("import pyspark; pyspark.__version__ = '3.5.6'", "remote-udf needs PySpark 4.1 or later, found 3.5.6: pip"),
        ("sys.version_info = (3, 10, 4)", "remote-udf needs Python 3.11 or later, found"),
    ],
)
def test_the_import_of_a_public_name_says_in_one_line_what_is_missing(before, message):
    command = [sys.executable, "-c", REFUSED.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(message.format(python=sys.executable))
    assert done.stdout.count("\n") == 1


@pytest.fixture
def found(monkeypatch):
    """Sets the version of a package."""
    installed = requirements.version

    def find(package, number):
        monkeypatch.setattr(requirements, "version", lambda name: number if name == package else installed(name))

    return find


@pytest.mark.parametrize("number", ["2.2.0", "2.3.3", "3.1.1"])
def test_pandas_2_and_3_are_accepted(found, number):
    found("pandas", number)
    requirements.require_packages()


@pytest.mark.parametrize("number", ["28.10.1", "30.29.0", "31.0.0"])
def test_another_sqlglot_is_named_with_the_range_of_the_package(found, number):
    found("sqlglot", number)
    wanted = re.search(r'"(sqlglot>=30[^"]*)"', (ROOT / "pyproject.toml").read_text())[1]
    with pytest.raises(ImportError, match=f"found {number}: pip install '{re.escape(wanted)}'"):
        requirements.require_packages()


def test_the_compiled_sqlglot_is_refused(monkeypatch):
    find = requirements.importlib.util.find_spec

    def compiled(name):
        spec = find(name)
        return types.SimpleNamespace(origin="parser.cpython-311-x86_64-linux-gnu.so") if "parser" in name else spec

    monkeypatch.setattr(requirements.importlib.util, "find_spec", compiled)
    with pytest.raises(ImportError, match="sqlglotc replaces by a compiled one: pip uninstall sqlglotc"):
        requirements.require_packages()
