"""Bundles that are applied without a query, with a server of a user's file."""

import pytest

from tests.conformance.binding import FileBinder
from tests.conformance.cases import Case, FunctionWords
from tests.conformance.judging import judge
from tests.conformance.kinds import bundles
from tests.conformance.observation import Observation
from tests.conformance.servers import Servers

FUNCTIONS = """
import pyarrow as pa
import udf_server as udf

class Total(udf.AggregateFunction):
    parameters = {"v": pa.int64()}
    returns = accumulator = pa.int64()
    def create_accumulator(self): return 0
    def accumulate(self, accumulator, v): return accumulator + v
    def retract(self, accumulator, v): return accumulator - v
    def merge(self, accumulator, others): return accumulator + sum(others)
    def get_value(self, accumulator): return accumulator
"""


@pytest.fixture
def applied(tmp_path):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    servers = Servers()
    binder = FileBinder(tmp_path / "functions.py", servers)

    class World:
        def observation(self, case, bound):
            return Observation()

        def server(self, case, bound):
            return binder.server(case, bound, 0)

    def run(results, **asked):
        rows = [{"row_kind": "+I", "row": [4]}, {"row_kind": "-D", "row": [1]}]
        segment = {
            "key": [7],
            "rows": rows,
            "accumulators": [[10], [1]],
            "updated_values_after_each_row": True,
            **asked,
        }
        expected = {"kind": "bundle_calls", "calls": [{"segments": [segment], "results": [results]}]}
        words = FunctionWords("Total", "bundled_aggregate", (("v", "BIGINT"),), "BIGINT", "")
        case = Case("it", "some.json", "direct call", (words,), (), {"expected": expected})
        seen = bundles.observe(case, World(), binder.bind(case, []))
        return judge(case.expectation, seen)

    yield run
    servers.close()


def test_a_bundle_gives_the_values_that_it_is_asked_for(applied):
    values = {"starting_value": [11], "final_value": [14], "updated_values_after_each_row": [[15], [14]]}
    assert applied({"accumulator": [14], **values}).status == "passed"
    none = {"starting_value": None, "final_value": [None], "updated_values_after_each_row": []}
    assert applied({"accumulator": [14], **none}, include_value=False).status == "passed"
    assert applied({"accumulator": [14], **values}, include_value=False).status == "failed"
    assert applied({"accumulator": [13], **none}, include_value=False).status == "failed"
