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

class Total(udf.AggregateFunction):
    parameters = "v bigint"
    returns = accumulator = "bigint"
    def create_accumulator(self): return 0
    def accumulate(self, accumulator, v): return accumulator + v
    def retract(self, accumulator, v): return accumulator - v
    def get_value(self, accumulator): return accumulator
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

        def run(*rows, query=QUERY, table=None, others=None, **item):
            told = {"id": "it", "functions": [TWICE], "query": query, **item}
            told["tables"] = {"t": {"columns": COLUMNS, "rows": list(rows), **(table or {})}, **(others or {})}
            (folder / "cases" / "some.json").write_text(json.dumps([told]))
            (file,) = load_folder(folder / "cases")
            assert not file.broken
            return run_case(file.cases[0], environment, mutate=True)

        yield run


@pytest.mark.long
def test_a_join_that_spark_has_not_on_streams_is_run_in_batch_only(run):
    others = {"u": {"columns": [{"name": "w", "type": "INT"}], "rows": [[3], [5]]}}
    entry = run(
        ["a", 1], ["b", 2], query="SELECT k, w FROM t JOIN u ON twice(v) > w", others=others, mode="both",
        expected={"rows": [["b", 3]]},
    )  # fmt: skip
    assert (entry.status, list(entry.unchecked)) == ("partly checked", ["mode: stream"]), entry.reason


@pytest.mark.long
def test_a_stream_is_restarted_where_a_case_has_a_phase(run):
    phases = [{"before_restore": [["a", 2]]}, {"after_restore": "the rest, in order"}]
    expected = {"rows": [["a", 2], ["b", 4], ["c", 6]], "phases": phases}
    entry = run(["a", 1], ["b", 2], ["c", 3], expected=expected)
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason
    wrong = run(["a", 1], ["b", 2], ["c", 3], expected={**expected, "phases": [{"before": [["b", 4]]}]})
    assert wrong.status == "failed"


@pytest.mark.long
def test_a_stream_is_restarted_between_the_phases_of_rows(run):
    rows = [{"values": [k, v], "phase": phase} for k, v, phase in (("a", 1, "early"), ("b", 2, "late"))]
    wanted = [{**row, "values": [row["values"][0], 2 * row["values"][1]]} for row in rows]
    entry = run(*rows, expected={"rows": wanted})
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason
    assert run(*rows, expected={"rows": [{**each, "phase": "late"} for each in wanted]}).status == "failed"


def test_the_equivalent_of_a_batch_is_run_as_well(run):
    expected = {"rows": [["a", 2], ["b", 4]]}
    assert run(["a", 1], ["b", 2], expected=expected, batch_equivalent="SELECT k, v + v AS w FROM t").status == "passed"
    wrong = run(["a", 1], ["b", 2], expected=expected, batch_equivalent="SELECT k, v AS w FROM t")
    assert wrong.reason.startswith("batch with its batch equivalent: ")


@pytest.mark.long
def test_each_row_of_a_changelog_passes_with_its_kind(run):
    changes = [
        {"kind": "+I", "values": ["a", 1]},
        {"kind": "-U", "values": ["a", 1]},
        {"kind": "+U", "values": ["a", 3]},
    ]
    rows = [{**each, "values": ["a", 2 * each["values"][1]]} for each in changes]
    entry = run(*changes, expected={"rows": rows})
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason
    assert run(*changes, expected={"rows": [{**rows[0], "kind": "+U"}, *rows[1:]]}).status == "failed"
    # A condition drops an old row and lets the new one pass, which is no insert for that.
    left = [{"row_kind": "+U", "row": ["a", 6]}]
    expected = {"kind": "changelog", "changes": left}
    entry = run(*changes, query=f"{QUERY} WHERE twice(v) > 2", expected=expected)
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (f"{QUERY}; SELECT v FROM t", {"statements": [[["a", 2]], {"rows": [[1]], "columns": [{"name": "v"}]}]}),
        (f"INSERT INTO x {QUERY}; INSERT INTO y SELECT v FROM t", {"rows": {"y": [[1]], "x": [["a", 2]]}}),
        (f"INSERT INTO x {QUERY}; INSERT INTO x SELECT k, v FROM t", {"rows": [["a", 1], ["a", 2]]}),
        (
            f"EXECUTE STATEMENT SET BEGIN INSERT INTO x {QUERY}; INSERT INTO y SELECT v FROM t; END",
            {"sinks": {"x": {"rows": [["a", 2]]}, "y": {"rows": [[1]]}}},
        ),
    ],
)
def test_each_statement_has_its_rows(run, query, expected):
    entry = run(["a", 1], query=query, expected=expected)
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason
    assert run(["a", 7], query=query, expected=expected).status == "failed"


def test_a_statement_without_rows_of_its_own_must_run(run):
    entry = run(["a", 1], query=f"SELECT nothing FROM t; {QUERY}", expected={"rows": [["a", 2]]})
    assert entry.reason.startswith("statement 1: batch: failed: "), entry.reason
    short = {"statements": [[["a", 2]]]}
    assert run(["a", 1], query=f"SELECT v FROM t; {QUERY}", expected=short).status == "malformed"


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        ("1 per row left", "passed"),
        ("1 per row left + 1 per surviving row", "failed"),
        ("1 per row", "failed"),
        ("1 per blue row", "partly checked"),
    ],
)
def test_calls_are_counted_by_the_rows_that_conditions_leave(run, calls, status):
    rows = [["a", 1], ["b", 2], ["a", 3]]
    query = "SELECT k FROM t WHERE k = 'a' AND twice(v) > 2"
    entry = run(*rows, query=query, expected={"kind": "plan", "calls": calls})
    assert entry.status == status, entry.reason


def test_a_table_that_the_query_does_not_read_changes_no_count(run):
    other = {"u": {"columns": COLUMNS, "rows": []}}
    entry = run(
        ["a", 1], ["b", 2], query="SELECT twice(v) FROM t WHERE v > 1", others=other,
        expected={"kind": "plan", "calls": "1 per row left"},
    )  # fmt: skip
    assert entry.status == "passed", entry.reason


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (1, [("+I", "a", 1), ("+I", "b", 10), ("-U", "a", 1), ("+U", "a", 3), ("-U", "a", 3), ("+U", "a", 7)]),
        (2, [("+I", "a", 1), ("+I", "b", 10), ("-U", "a", 1), ("+U", "a", 7)]),
        (3, [("+I", "a", 3), ("+I", "b", 10), ("-U", "a", 3), ("+U", "a", 7)]),
    ],
)
def test_a_bundle_has_rows_of_all_keys(run, size, changes):
    entry = run(
        ["a", 1], ["b", 10], ["a", 2], ["a", 4],
        functions=[{"name": "Total", "kind": "bundled_aggregate", "args": [{"name": "v", "type": "BIGINT"}]}],
        query="SELECT k, Total(v) FROM t GROUP BY k",
        config={"table.exec.bundled-agg.size": size},
        expected={"kind": "changelog", "changes": [{"row_kind": kind, "row": row} for kind, *row in changes]},
    )  # fmt: skip
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason


@pytest.mark.parametrize("setup", [None, ["CREATE VIEW latest AS SELECT k, MAX(v) AS v FROM t GROUP BY k"]])
@pytest.mark.parametrize("where", ["", " WHERE v > 0"])
def test_a_bundle_over_a_subquery_has_changes_of_its_result(run, setup, where):
    """The rows a 1, b 2, a 3 make the changes +a 1, +b 2, -a 1, +a 3, of which a bundle has three."""
    source = "latest" if setup else "(SELECT k, MAX(v) AS v FROM t GROUP BY k)"
    changes = [("+I", 0, 2), ("+I", 1, 3)]
    entry = run(
        ["a", 1], ["b", 2], ["a", 3], setup=setup or [],
        functions=[{"name": "Total", "kind": "bundled_aggregate", "args": [{"name": "v", "type": "BIGINT"}]}],
        query=f"SELECT v % 2, Total(v) FROM {source}{where} GROUP BY v % 2",
        config={"table.exec.bundled-agg.size": 3},
        expected={"kind": "changelog", "changes": [{"row_kind": kind, "row": row} for kind, *row in changes]},
    )  # fmt: skip
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason


@pytest.mark.parametrize(
    ("existing", "new", "merged", "parts"),
    [
        ([(0, 1), (2, 3), (4, 5)], (1, 2), (0, 3), [(0, 1), (1, 2), (2, 3)]),
        ([(10, 40), (50, 70)], (30, 60), (10, 70), [(10, 40), (30, 60), (50, 70)]),
        ([(600, 700)], (0, 100), None, []),
        ([], (0, 100), None, []),
    ],
)
def test_a_session_merges_those_that_it_touches(run, existing, new, merged, parts):
    told = {
        "existing": existing, "new": new, "merged": merged, "merged_from": parts,
        "after": [merged or new, *(each for each in existing if each not in parts)],
    }  # fmt: skip
    entry = run(functions=[], query="SESSION gap 5 s", kind="session-merge", expected={"merges": [told]})
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason


@pytest.mark.parametrize(
    ("query", "given", "windows"),
    [
        ("TUMBLE size 1 d", {"time": "03:00:00"}, [("00:00:00", "24:00:00")]),
        ("tumble size 10 s", {"time": "00:00:14", "offset_ms": 1500}, [("00:00:11.500", "00:00:21.500")]),
        ("HOP slide 5 s, size 10 s", {"time": "00:00:14"}, [("00:00:05", "00:00:15"), ("00:00:10", "00:00:20")]),
        (
            "SESSION gap 5 min",
            {"times": ["00:00:00", "00:04:00", "01:00:00"]},
            [("00:00:00", "00:09:00"), ("01:00:00", "01:05:00")],
        ),
    ],
)
def test_windows_of_times_are_those_of_the_function(run, query, given, windows):
    def on(day):
        return f"2020-01-01T{day}" if day != "24:00:00" else "2020-01-02T00:00:00"

    told = {key: on(value) if key == "time" else value for key, value in given.items()}
    told |= {"times": [on(each) for each in given["times"]]} if "times" in given else {}
    assignments = [{**told, "windows": [[on(start), on(end)] for start, end in windows]}]
    entry = run(functions=[], query=query, kind="assignment", expected={"assignments": assignments})
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_an_instant_is_in_the_window_of_the_time_zone_of_its_case(run, mode):
    table = {"columns": [*COLUMNS, {"name": "at", "type": "TIMESTAMP_LTZ(3)"}], "time_column": "at"}
    entry = run(
        ["a", 1, "2021-06-30T18:29:59.999Z"], ["a", 2, "2021-06-30T18:30:00Z"], table=table, functions=[], mode=mode,
        query="SELECT v, window_start FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '1' DAY))",
        config={"table.local-time-zone": "Asia/Kolkata"},
        expected={"rows": [[1, "2021-06-30T00:00:00"], [2, "2021-07-01T00:00:00"]]},
    )  # fmt: skip
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason


def test_a_window_of_the_clock_closes_in_its_last_millisecond_and_averages_are_truncated(run):
    clock = [{"op": "processing_time", "ts": f"1970-01-01T00:00:0{at}"} for at in ("1", "4.998", "4.999")]
    events = [clock[0], *({"op": "row", "row": ["a", v]} for v in (3, 4)), *clock[1:]]
    row = ["a", 7, 3, "1970-01-01T00:00:00", "1970-01-01T00:00:05"]
    entry = run(
        table={"events": events, "time_column": "proctime"}, functions=[], mode="streaming",
        query="SELECT k, SUM(v) AS s, AVG(v) AS a, window_start, window_end FROM TABLE(TUMBLE(TABLE t, "
        "DESCRIPTOR(proctime), INTERVAL '5' SECOND)) GROUP BY k, window_start, window_end",
        expected={"steps": [{"after_event": 4, "rows": [{"kind": "+I", "row": row}]}]},
    )  # fmt: skip
    assert (entry.status, entry.unnoticed) == ("passed", []), entry.reason
