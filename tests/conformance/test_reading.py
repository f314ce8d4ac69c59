"""Cases as files hold them, their options, and what their errors say."""

import json
from collections.abc import Callable

import pytest

from tests.conformance.cases import Case, load_folder
from tests.conformance.flink_options import session_settings
from tests.conformance.gist import says
from tests.conformance.kinds import scalar
from tests.conformance.kinds.plans import allowance
from tests.conformance.report import FileReport, Outcome, Result, failures, summary

Read = Callable[..., Case]


@pytest.fixture
def read(tmp_path):
    def case(shared=None, **item):
        path = tmp_path / "some.json"
        path.write_text(json.dumps({"tables": shared or {}, "cases": [{"id": "it", "query": "SELECT 1", **item}]}))
        (file,) = load_folder(tmp_path)
        assert not file.broken
        return file.cases[0]

    return case


def test_rows_may_be_lists_or_objects_with_a_kind(read):
    columns = [{"name": "k", "type": "STRING"}, {"name": "v", "type": "INT"}]
    rows = [
        ["a", 1],
        {"kind": "+U", "values": ["a", 2]},
        {"kind": "+I", "row": ["b", 3]},
        {"kind": "-D", "values": ["b", None]},
    ]
    table = read(tables={"t": {"columns": columns, "rows": rows, "primary_key": ["k"]}}).tables[0]
    assert [kind for kind, _ in table.changes] == ["+I", "+U", "+I", "-D"]
    assert table.changelog and table.end_state() == [["a", 2]]


def test_tables_may_be_shared_by_a_file_or_inline(read):
    bid = {"columns": [{"name": "x", "type": "INT"}], "rows": [[1]]}
    event = {
        "columns": bid["columns"],
        "events": [{"op": "row", "kind": "+I", "row": [5]}, {"op": "watermark", "ts": "x"}],
    }
    case = read(shared={"Bid": bid}, tables=["Bid", "E"], inline_tables={"E": event})
    assert [(table.name, table.end_state()) for table in case.tables] == [("Bid", [[1]]), ("E", [[5]])]
    assert len(case.tables[1].events) == 2


def test_errors_are_found_wherever_a_file_puts_them(read):
    spellings = (
        {"expected": {"kind": "error", "message_contains": "no", "phase": "planning"}},
        {"expected": {"error": {"message_contains": "no", "raised_at": "planning"}}},
    )
    for spelling in spellings:
        expected = read(**spelling).expected
        assert (expected.kind, expected.error, expected.phase) == ("error", "no", "planning")
    assert read(expected_error="no").expected.error == "no"


def test_a_changelog_is_expected_by_its_end_state(read):
    rows = [{"kind": "+I", "values": [1, 11]}, {"kind": "-U", "values": [1, 11]}, {"kind": "+U", "values": [1, 14]}]
    expected = read(expected={"ordered": True, "rows": rows}).expected
    assert (expected.kind, list(expected.rows), expected.ordered) == ("changelog", [[1, 14]], False)
    final = read(expected={"kind": "changelog", "changes": rows, "final_rows": [[7, 7]]}).expected
    assert list(final.rows) == [[7, 7]]


def test_a_case_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"cases": [{"id": "good"}, {"id": "bad", "tables": ["none"]}]}))
    (tmp_path / "b.json").write_text("{")
    first, second = load_folder(tmp_path)
    assert [case.id for case in first.cases] == ["good"]
    assert first.broken[0][0] == "bad" and "KeyError" in first.broken[0][1]
    assert second.broken[0][1].startswith("not a file of cases")


def test_the_kind_is_decided_by_content(read):
    function = {"name": "f", "args": [], "behaviour": "", "returns": "INT"}
    rows = {"expected": {"rows": []}}
    assert scalar.claims(read(functions=[{**function, "kind": "async_scalar"}], **rows))
    assert scalar.claims(
        read(functions=[{**function, "kind": "async_table"}, {**function, "kind": "builtin_scalar"}], **rows)
    )
    assert not scalar.claims(read(functions=[{**function, "kind": "bundled_aggregate"}], **rows))
    assert not scalar.claims(read(function=function, **rows))
    assert not scalar.claims(
        read(query="SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' DAY))", **rows)
    )
    assert not scalar.claims(read(query="direct call", **rows))


def test_flinks_options_become_ours():
    prefix = "spark.remoteudf.async-scalar."
    settings = session_settings(
        {
            "parallelism": 2,
            "table.exec.async-scalar.max-concurrent-operations": 7,
            "table.exec.async-scalar.max-attempts": 1,
            "table.exec.async-scalar.retry-delay": "5 ms",
            "table.exec.async-scalar.cat.db.func.timeout": "1 s",
        }
    )
    assert settings == {
        prefix + "buffer-capacity": "7",
        prefix + "max-attempts": "2",
        prefix + "fixed-delay": "5 ms",
        prefix + "retry-strategy": "fixed-delay",
        prefix + "retry-on": "Exception",
        prefix + "func.timeout": "1 s",
    }
    assert session_settings({"table.exec.async-scalar.retry-strategy": "NO_RETRY"}) == {
        prefix + "retry-strategy": "none",
        prefix + "retry-on": "Exception",
    }
    assert session_settings({"table.exec.async-scalar.max-attempts": 0})[prefix + "max-attempts"] == "0"


def test_a_message_says_the_same_thing_in_other_words():
    spark = (
        "The feature is not supported: Python UDF in the ON clause of a LEFT OUTER JOIN. In case of an INNER JOIN ..."
    )
    assert says("AsyncScalarFunction not supported for non inner join condition", spark)
    assert says("timed out", "TIMEOUT: timed out: no result within 1 s")
    assert not says("timed out", "no such column: f1")
    assert not says(
        "AsyncScalarFunction not supported for non inner join condition", "a column of this name is missing"
    )


def test_calls_are_allowed_per_row_of_an_input():
    counts = {("", "row"): 10, ("left", "row"): 4, ("left", "surviving row"): 3, ("right", "row"): 5}

    def rows_of(side, unit):
        return counts.get((side, unit))

    assert allowance("6 per row", rows_of) == 60
    assert (
        allowance("left: 1 per row for the filter + 1 per surviving row for the key; right: 1 per row", rows_of) == 12
    )
    assert allowance("1 per phase of the moon", rows_of) is None
    assert allowance("", rows_of) is None


def test_a_report_counts_and_tells_reasons():
    report = FileReport("x.json")
    report.results += [
        ("a", Result.passed()),
        ("b", Result.failed("two\nlines")),
        ("c", Result.not_applicable("why")),
        ("d", Result.not_applicable("why")),
        ("e", Result(Outcome.FUNCTION_MISSING, "f: unknown")),
    ]
    assert summary(report) == "x.json: 1 passed / 1 failed / 2 not applicable (2 x why) / 1 function missing"
    assert failures(report) == ["FAILED x.json b: two lines", "FUNCTION MISSING x.json e: f: unknown"]
    assert report.to_json()["details"][1] == {"id": "b", "outcome": "failed", "reason": "two\nlines"}
