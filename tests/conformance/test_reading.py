"""Cases as files hold them, and their options."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.conformance.allowances import exact_calls
from tests.conformance.cases import Case
from tests.conformance.declared_watermarks import delay_of, watermarked
from tests.conformance.flink_options import session_settings
from tests.conformance.judging import judge
from tests.conformance.kinds import scalar
from tests.conformance.observation import Observation
from tests.conformance.reading import load_folder
from tests.conformance.window_feed import END, events_of, moment

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
        {"expected_error": "no"},
    )
    assert [(read(**spelling).kind, read(**spelling).error) for spelling in spellings] == [("error", "no")] * 3


def test_modes_are_found_wherever_a_file_puts_them(read):
    assert read(mode="both").modes == {"batch", "stream"}
    assert read(config={"runtime_mode": "streaming"}).modes == {"stream"}
    assert read().modes == frozenset()


def test_a_case_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"cases": [{"id": "good"}, {"id": "bad", "tables": ["none"]}]}))
    (tmp_path / "b.json").write_text("{")
    first, second = load_folder(tmp_path)
    assert [case.id for case in first.cases] == ["good"]
    assert first.broken == (("bad", "tables: found 'none', expected a table of the file: there is none"),)
    assert second.broken[0][1].startswith("not a file of cases")


@pytest.mark.parametrize(
    ("item", "line"),
    [
        ({"id": 7}, "id: found 7, expected a text"),
        ({"query": ["SELECT 1"]}, "query: found ['SELECT 1'], expected a text"),
        ({"tables": {"t": {"columns": ["a"]}}}, "tables.t.columns[0]: found 'a', expected an object"),
        (
            {"tables": {"t": {"columns": [{"name": "a", "type": "INT"}], "rows": [[1, 2]]}}},
            "tables.t.rows[0]: found 2 values, expected 1, one per column",
        ),
        ({"tables": {"t": {"rows": [{"kind": "?", "row": []}]}}}, "tables.t.rows[0].kind: found '?', expected one"),
        ({"expected": {"kind": "song"}}, "expected.kind: found 'song', expected one of rows, changelog, error, plan"),
        ({"expected": [1]}, "expected: found [1], expected an object"),
        ({"functions": ["f"]}, "functions[0]: found 'f', expected an object"),
        ({"mode": "sometimes"}, "mode: found 'sometimes', expected one of batch, streaming, both"),
        ({"steps": [{"do": "row"}]}, "steps[0].op: found nothing, expected a text"),
        ({"tables": 3}, "tables: found 3, expected a list"),
        ({"tables": [3]}, "tables[0].name: found 3, expected a text"),
        ({"config_variants": ["a"]}, "config_variants[0]: found 'a', expected an object"),
        ({"setup": [3]}, "setup[0]: found 3, expected a text"),
        ({"expected": {"rows": 3}}, "expected.rows: found 3, expected a list"),
        ({"tables": {"t": {"columns": [{"name": "a", "type": "GLOBE"}]}}}, "tables.t.columns[0].type: found type"),
        (
            {"tables": {"t": {"columns": [{"name": "a", "type": "INT"}], "rows": [["x"]]}}},
            "tables.t.rows[0]: found 'x', expected a value of type int",
        ),
    ],
)  # fmt: skip
def test_what_is_malformed_is_named_in_one_line(tmp_path, item, line):
    (tmp_path / "a.json").write_text(json.dumps([{"id": "it", **item}]))
    ((_, why),) = load_folder(tmp_path)[0].broken
    assert why.startswith(line)


def test_a_name_that_comes_twice_is_malformed(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"id": "it", "query": "SELECT 1"}, {"id": "it"}]))
    (file,) = load_folder(tmp_path)
    assert [case.query for case in file.cases] == ["SELECT 1"]
    assert file.broken[0][1].startswith("id: found 'it' a second time")


@pytest.mark.parametrize("field", ["functions", "function", "tables", "config", "expected", "steps", "setup", "query"])
@pytest.mark.parametrize("value", [7, "text", [None], [[1]], {"a": 1}, {"a": {"rows": 1}}, True])
def test_nothing_that_a_file_holds_ends_the_run(tmp_path, field, value):
    (tmp_path / "a.json").write_text(json.dumps([{"id": "it", field: value}, {"id": "good", "query": "SELECT 1"}]))
    (file,) = load_folder(tmp_path)
    assert "good" in [case.id for case in file.cases]
    assert len(file.cases) + len(file.broken) == 2


def test_the_kind_is_decided_by_content(read):
    function = {"name": "f", "args": [], "behaviour": "", "returns": "INT"}
    rows = {"expected": {"rows": []}}
    assert scalar.claims(read(functions=[{**function, "kind": "async_scalar"}], **rows))
    assert scalar.claims(
        read(functions=[{**function, "kind": "async_table"}, {**function, "kind": "builtin_scalar"}], **rows)
    )
    assert not scalar.claims(read(functions=[{**function, "kind": "bundled_aggregate"}], **rows))
    assert not scalar.claims(
        read(query="SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' DAY))", **rows)
    )
    view = "CREATE VIEW v AS SELECT * FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' DAY))"
    assert not scalar.claims(read(query="SELECT * FROM v", setup=[view], **rows))
    assert not scalar.claims(read(query="direct call", **rows))
    assert not scalar.claims(read(query="SELECT * FROM f()", function={**function, "state": [], "timers": ""}, **rows))


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


def test_calls_are_counted_by_rows_of_an_input():
    units = {"row": 10, "left row": 4, "right row": 5, "joined row": 3}
    assert exact_calls("6 per row", units) == (60, 60)
    assert exact_calls("at most 6 per row", units) == (0, 60)
    assert exact_calls("1", units) == (1, 1)
    assert exact_calls("1 per left row + 1 per right row", units) == (9, 9)
    assert exact_calls("left: 2 per row; right: 1 per row", units) == (13, 13)
    assert exact_calls("1 per surviving row", units) is None
    assert exact_calls("3 per row", units, ["f(a)", "f(b)", "f(a)"]) == (20, 30)
    assert exact_calls("4 per row", units, ["f(a)", "f(b)", "f(a)"]) == (40, 40)
    assert exact_calls("1 per left row + 1 per right row", units, ["f(a)"]) == (4, 9)
    assert exact_calls("9 per left row + 1 per right row", units, ["f(a)"]) == (41, 41)
    assert exact_calls("", units) is None


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"also_expected": {"rows": 3}}, "also_expected.rows"),
        ({"config": {"parallelism": 1, "table.exec.x": 1, "must": "hold"}}, "config.must"),
        ({"tables": {"t": {"columns": [], "lateness": 1}}}, "tables.lateness"),
        (
            {"tables": {"t": {"columns": [{"name": "a", "type": "INT"}], "rows": [{"values": [1], "seen": 2}]}}},
            "tables.rows.seen",
        ),
        ({"steps": [{"op": "row", "table": "t", "values": [], "twice": True}]}, "steps.twice"),
        (
            {"expected": {"calls": [{"segments": [{"key": [1], "by": "x"}], "results": []}]}},
            "expected.calls.segments.by",
        ),
        ({"id": "it", "title": "x", "notes": "y", "model_checked": True}, None),
    ],
)
def test_a_field_that_nobody_knows_is_unchecked(read, item, field):
    verdict = judge(read(**item).expectation, Observation())
    assert [name for name in verdict.unchecked if not name.startswith("expected.calls.results")] == [field] * bool(
        field
    )


def named_times(case):
    return [([name for name, _ in table.columns], table.raw["time_column"]) for table in case.tables]


def test_the_time_of_a_table_has_the_name_that_the_query_has_for_it(read):
    columns = [{"name": "at", "type": "TIMESTAMP(3)"}, {"name": "v", "type": "INT"}]
    tables = {"t": {"columns": columns, "rows": [["2020-01-01", 1]], "time_column": "at"}}
    windows = "SELECT {} FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR({}), INTERVAL '1' DAY))"
    renamed = read(tables=tables, query=windows.format("v", "rowtime"))
    assert named_times(renamed) == [(["rowtime", "v"], "rowtime")]
    both = read(tables=tables, query=windows.format("at", "rowtime"))
    assert named_times(both) == [(["at", "v", "rowtime"], "rowtime")]
    assert both.tables[0].end_state() == [["2020-01-01", 1, "2020-01-01"]]
    shown = {"expected_columns": [{"name": "at"}, {"name": "v"}]}
    assert named_times(read(tables=tables, query=windows.format("*", "rowtime"), **shown)) == named_times(both)
    assert named_times(read(tables=tables, query=windows.format("at", "at"))) == [(["at", "v"], "at")]
    view = "CREATE VIEW w AS SELECT at AS rowtime FROM t"
    own = read(tables=tables, setup=[view], query=windows.format("v", "rowtime").replace("TABLE t", "TABLE w"))
    assert named_times(own) == [(["at", "v"], "at")]


def test_a_clock_has_the_name_that_the_query_has_for_it(read):
    event = {"columns": [{"name": "v", "type": "INT"}], "events": [{"op": "row", "row": [5]}], "time_column": "ptime"}
    query = "SELECT v FROM TABLE(TUMBLE(TABLE e, DESCRIPTOR(proctime), INTERVAL '1' DAY))"
    assert named_times(read(tables=["e"], inline_tables={"e": event}, query=query)) == [(["v"], "proctime")]


@pytest.mark.parametrize(
    ("declared", "column", "milliseconds"),
    [
        ({"column": "ts", "expression": "max(ts) - 1500 ms", "delay_ms": 1000}, "ts", 1000),
        ({"column": "ts", "expression": "max(ts) - 1500 ms"}, "ts", 1500),
        ("WATERMARK FOR `ts` AS `ts` - INTERVAL '2' MINUTE", "ts", 120_000),
        ("WATERMARK FOR ts AS ts - 3 s", "ts", 3000),
        ("WATERMARK FOR ts AS ts", "ts", 0),
        (None, None, 0),
    ],
)
def test_a_table_declares_its_watermark_as_an_object_or_as_ddl(read, declared, column, milliseconds):
    columns = [{"name": "ts", "type": "TIMESTAMP(3)"}]
    rows = [["2025-01-01T00:00:10"]]
    (table,) = read(tables={"t": {"columns": columns, "rows": rows, "watermark": declared}}).tables
    assert (watermarked(table), delay_of(table)) == (column, timedelta(milliseconds=milliseconds))
    marks = [event.at for event in events_of(table) if event.op == "watermark"]
    assert marks == [*([moment(rows[0][0]) - delay_of(table)] if declared else []), END]


def test_an_upsert_changelog_retracts_the_row_of_its_key_however_it_is_named(read):
    columns = [{"name": "k", "type": "STRING"}, {"name": "ts", "type": "TIMESTAMP(3)"}]
    rows = [{"kind": "+U", "values": ["a", f"2025-01-01T00:00:1{second}"]} for second in range(2)]
    for mode in ("UA,D (upsert)", "I,UA,D", "upsert"):
        (table,) = read(
            tables={"t": {"columns": columns, "rows": rows, "primary_key": "k", "changelog_mode": mode}}
        ).tables
        assert [event.kind for event in events_of(table) if event.op == "row"] == ["+I", "-U", "+U"]


def test_events_of_a_script_are_read_in_either_spelling(read):
    columns = [{"name": "ts", "type": "TIMESTAMP(3)"}]
    events = [{"op": "row", "values": ["2025-01-01T00:00:10"]}, {"op": "watermark", "to": "2025-01-01T00:00:09"},
              {"op": "restore"}]  # fmt: skip
    (table,) = read(tables={"t": {"columns": columns, "events": events, "time_column": "ts"}}).tables
    assert [(event.op, event.values, event.at) for event in events_of(table)] == [
        ("row", ["2025-01-01T00:00:10"], None), ("watermark", (), moment("2025-01-01T00:00:09")), ("restart", (), None),
    ]  # fmt: skip
