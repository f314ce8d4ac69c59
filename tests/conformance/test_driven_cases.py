"""Queries whose calls are driven row by row, with the watermarks of the case, as the calls of a stream would be."""

import json

import pytest

from tests.conformance.reading import load_folder
from tests.conformance.runner import prepared, run_case

FUNCTIONS = """
from typing import Annotated
import udf_server as udf

class Watermarks(udf.ProcessTableFunction):
    returns = "seen bigint"
    def eval(self, ctx: udf.ProcessContext, step: int, rows: Annotated[
        udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE, udf.ArgumentTrait.REQUIRE_ON_TIME]):
        yield (step * (ctx.time_context(int).current_watermark() or 0),)
"""
ARGUMENTS = [{"name": "step", "kind": "scalar"}, {"name": "rows", "kind": "set-semantic table"}]
COLUMNS = [{"name": "k", "type": "STRING"}, {"name": "ts", "type": "TIMESTAMP_LTZ(3)"}]
ROWS = [["a", f"2025-01-01T00:00:{second}Z"] for second in (10, 20, 30)]
START = 1_735_689_600_000
"""The first of January 2025 in milliseconds."""


@pytest.fixture(scope="module")
def driven(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("driven")
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "cases").mkdir()
    with prepared(spark.newSession(), folder / "cases", folder / "functions.py", files=[]) as environment:

        def run(*rows, **item):
            table = {"columns": COLUMNS, "rows": ROWS, "watermark": "WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"}
            told = {
                "id": "it",
                "function": {"name": "Watermarks", "behaviour": "", "arguments": ARGUMENTS, "state": []},
                "tables": {"t": table},
                "query": "SELECT k, seen FROM Watermarks(step => 1, rows => TABLE t PARTITION BY k, "
                "on_time => DESCRIPTOR(ts))",
                "expected": {"rows": [["a", row] for row in rows], "ordered": True},
                **item,
            }
            (folder / "cases" / "some.json").write_text(json.dumps([told]))
            (case,) = load_folder(folder / "cases")[0].cases
            return run_case(case, environment)

        yield run


@pytest.mark.slow
def test_each_row_of_a_driven_call_sees_the_watermark_of_the_rows_before_it(driven):
    entry = driven(0, START + 9_000, START + 19_000)
    assert entry.status == "passed", entry.reason
    assert driven(0, START + 9_000, START + 20_000).status == "failed"
