"""Queries over functions of a user's file, from the case to its outcome."""

import json

import pytest

from tests.conformance.reading import load_folder
from tests.conformance.runner import prepared, run_case

pytestmark = pytest.mark.slow

FUNCTIONS = """
import udf_server as udf

@udf.scalar
async def twice(v: int) -> int:
    return 2 * v
"""
COLUMNS = [{"name": "k", "type": "STRING"}, {"name": "v", "type": "INT"}]
TWICE = {"name": "twice", "kind": "async_scalar", "args": [{"name": "v", "type": "INT"}]}
QUERY = "SELECT k, twice(v) AS w FROM t"


@pytest.fixture(scope="module")
def run(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("queries")
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "cases").mkdir()
    with prepared(spark.newSession(), folder / "cases", folder / "functions.py", files=[]) as environment:

        def run(*rows, query=QUERY, table=None, **item):
            told = {"id": "it", "functions": [TWICE], "query": query, **item}
            told["tables"] = {"t": {"columns": COLUMNS, "rows": list(rows), **(table or {})}}
            (folder / "cases" / "some.json").write_text(json.dumps([told]))
            (file,) = load_folder(folder / "cases")
            assert not file.broken
            return run_case(file.cases[0], environment, mutate=True)

        yield run


def test_a_stream_is_restarted_where_a_case_has_a_phase(run):
    phases = [{"before_restore": [["a", 2]]}, {"after_restore": "the rest, in order"}]
    expected = {"rows": [["a", 2], ["b", 4], ["c", 6]], "phases": phases}
    entry = run(["a", 1], ["b", 2], ["c", 3], expected=expected)
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason
    wrong = run(["a", 1], ["b", 2], ["c", 3], expected={**expected, "phases": [{"before": [["b", 4]]}]})
    assert wrong.status == "failed"


def test_the_equivalent_of_a_batch_is_run_as_well(run):
    expected = {"rows": [["a", 2], ["b", 4]]}
    assert run(["a", 1], ["b", 2], expected=expected, batch_equivalent="SELECT k, v + v AS w FROM t").status == "passed"
    wrong = run(["a", 1], ["b", 2], expected=expected, batch_equivalent="SELECT k, v AS w FROM t")
    assert wrong.reason.startswith("batch with its batch equivalent: ")
