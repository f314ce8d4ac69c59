"""A notebook: a cell writes the plugin's file with `%%writefile`, and the next cell shows what the file says."""

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from spark_client.embedded import embedded_server

pytestmark = pytest.mark.long

FILE = """%%writefile {name}
import udf_server as udf

@udf.scalar
def price(amount: {type}) -> {type}:
    {body}
"""
SHOW = 'remote.sql("SELECT price({argument}) AS price").collect()[0].price'


@pytest.fixture
def run(spark, tmp_path, monkeypatch):
    """Runs cells as a kernel does, in a folder of their own. Returns the value or the error of the last line."""
    monkeypatch.chdir(tmp_path)
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell(user_ns={"spark": spark}, config=config)

    def run_cell(cell):
        done = shell.run_cell(cell)
        return done.error_before_exec or done.error_in_exec or done.result

    yield run_cell
    shell.restore_sys_module_state()


@pytest.mark.parametrize("target", ['plugins=["priced_udfs.py"]', 'f"local:{os.getcwd()}/priced_udfs.py"'])
def test_each_cell_shows_the_file_that_the_cell_before_has_written(run, target, tmp_path):
    def write(body, kind="int"):
        assert run(FILE.format(name="priced_udfs.py", body=body, type=kind)) is None

    write("return amount * 2")
    assert run(f"import os\nfrom spark_client import connect\nremote = connect(spark, {target})") is None
    assert run(SHOW.format(argument=21)) == 42
    write("return amount *")
    error = run(SHOW.format(argument=21))
    assert "SyntaxError" in str(error)
    assert "return amount *" in str(error)
    write("return amount * 3")
    assert run(SHOW.format(argument=21)) == 63
    write("return amount.upper()", "str")
    assert run(SHOW.format(argument="'abc'")) == "ABC"
    if "plugins" in target:
        embedded_server([str(tmp_path / "priced_udfs.py")]).stop()
