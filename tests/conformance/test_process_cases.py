"""Cases with process table functions of a user's file: scripts, and which of them can be run as streams."""

import json
from functools import partial
from types import SimpleNamespace

import pytest

from tests.conformance.binding import FileBinder, called_in_from, called_names
from tests.conformance.checking import CaseError
from tests.conformance.environment import Environment, limited
from tests.conformance.flink_tables import process_sql
from tests.conformance.judging import judge
from tests.conformance.kinds import process_scripts
from tests.conformance.kinds.process_streams import not_a_stream
from tests.conformance.reading import load_folder

FUNCTIONS = """
from typing import Annotated
import udf_server as udf

class Counting(udf.ProcessTableFunction):
    returns = "n bigint"
    def eval(self, ctx: udf.ProcessContext, seen: udf.ValueView[int],
             rows: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE]):
        seen.value = (seen.value or 0) + 1
        while rows[0] == "endless":
            pass
        yield (seen.value,)

class Passing(udf.ProcessTableFunction):
    returns = "n bigint"
    def eval(self, ctx: udf.ProcessContext, rows: Annotated[udf.Row, udf.ArgumentTrait.ROW_SEMANTIC_TABLE]):
        yield (1,)
"""
WORDS = {
    "name": "Counting",
    "behaviour": "",
    "arguments": [{"name": "rows", "kind": "set-semantic table"}],
    "state": [],
}
QUERY = "SELECT * FROM f(rows => TABLE t PARTITION BY k)"
TIMED = {"watermark": "WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"}


@pytest.fixture
def read(tmp_path):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    binder = FileBinder(tmp_path / "functions.py", SimpleNamespace())

    def case(**item):
        table = {"columns": [{"name": "k", "type": "STRING"}], "rows": []}
        told = {"id": "it", "function": {**WORDS, "timers": "none"}, "tables": {"t": table}, "query": QUERY, **item}
        (tmp_path / "some.json").write_text(json.dumps([told]))
        (made,) = load_folder(tmp_path)[0].cases
        return made, binder.bind(made, [])

    return case


def read_service(read, **item):
    """Reads a case of the timer service, to which no function is bound."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FileBinder, "bind", lambda *_: [])
        case, _ = read(**item)
    return case


def scripted(case, bound):
    environment = SimpleNamespace(observation=partial(Environment.observation, None))
    return judge(case.expectation, process_scripts.observe(case, environment, bound))


@pytest.mark.parametrize("query", [QUERY, "select * from f(TABLE t PARTITION BY k)", "t.partitionBy(k).process(f)"])
def test_a_script_drives_a_call_however_it_is_written(read, query):
    row = {"op": "row", "table": "t", "values": ["a"]}
    state = {"op": "expect_state", "state": "seen", "key": "a", "value": 2}
    expected = {"rows": [["a", 1], ["a", 2]], "ordered": True}
    assert scripted(*read(query=query, steps=[row, row, state], expected=expected)).status == "passed"
    wrong = scripted(*read(query=query, steps=[row, row, {**state, "value": 3}], expected=expected))
    assert wrong.problems == ["steps.value: expected 3, found 2"]


def test_a_key_of_several_columns_is_a_list_and_pending_timers_have_no_order(read):
    columns = [{"name": "k", "type": "DATE"}, {"name": "j", "type": "INT"}]
    two = {"tables": {"t": {"columns": columns, "rows": []}}, "query": f"{QUERY[:-2]}(k, j))"}
    steps = [{"op": "row", "table": "t", "values": each} for each in (["2025-01-01", 1], ["2025-01-01", None])]
    keys = {"op": "expect_state_keys", "state": "seen", "keys": [["2025-01-01", None], ["2025-01-01", 1]]}
    state = {"op": "expect_state", "state": "seen", "key": ["2025-01-01", 1], "value": 1}
    assert scripted(*read(steps=[*steps, keys, state], expected={}, **two)).status == "passed"
    wrong = scripted(*read(steps=[*steps, {**keys, "keys": [["2025-01-02", 1]]}], expected={}, **two))
    assert "expected [['2025-01-02', 1]]" in wrong.problems[0]

    timers = [{"key": key, "name": name, "time_ms": time} for key, name, time in (("a", "t", 9), ("b", None, 5))]
    service = {"function": {**WORDS, "name": process_scripts.SERVICE}, "tables": {}, "query": "(timers)"}
    for told in (timers, timers[::-1], timers[:1]):
        pending = {"op": "expect_pending_timers", "timers": told}
        case = read_service(read, steps=[*({"op": "register_timer", **each} for each in timers), pending], **service)
        assert bool(scripted(case, []).problems) is (len(told) < 2)


def test_the_watermark_of_all_tables_is_told_in_any_form(read):
    steps = [{"op": "watermark", "to": 5}, {"op": "expect_global_watermark", "to": 5}]
    told = [*steps, {"op": "expect_global_watermark", "watermark": "1970-01-01T00:00:00.005Z"}]
    assert scripted(*read(steps=told, expected={"rows": []})).status == "passed"
    wrong = scripted(*read(steps=[*steps, {"op": "expect_global_watermark", "to": 6}], expected={"rows": []}))
    assert wrong.problems == ["steps.to: expected 6, found 5"]


def test_a_script_tells_what_was_emitted_since_it_cleared_it(read):
    row = {"op": "row", "table": "t", "values": ["a"]}
    told = [{"op": "expect_output", "rows": [["a", 1], ["a", 2]]}, {"op": "clear_output"}, {"op": "end_of_input"}]
    last = {"op": "expect_output", "rows": [{"kind": "+I", "values": ["a", 3]}]}
    expected = {"rows": [["a", 1], ["a", 2], ["a", 3]], "ordered": True}
    assert scripted(*read(steps=[row, row, *told, row, last], expected=expected)).status == "passed"
    wrong = scripted(*read(steps=[row, row, *told, row, {**last, "rows": [["a", 4]]}], expected=expected))
    assert wrong.problems == ["steps.rows: expected [['a', 4]], found [['a', 3]]"]


def test_a_snapshot_has_the_output_and_the_fired_timers_of_its_time(read):
    row = {"op": "row", "table": "t", "values": ["a"]}
    snapshot, restore = {"op": "snapshot", "name": "s"}, {"op": "restore", "name": "s"}
    told = {"op": "expect_output", "rows": [["a", 1], ["a", 2]]}
    expected = {"rows": [["a", 1], ["a", 2], ["a", 2]], "ordered": True}
    assert scripted(*read(steps=[row, snapshot, row, told, restore, row, told], expected=expected)).status == "passed"

    timers = [
        {"op": "register_timer", "key": "k", "name": name, "time_ms": time} for name, time in (("a", 1), ("b", 2))
    ]
    first, second = ({"op": "watermark", "to": to, "table": "table-a"} for to in (1, 2))
    fired = [{"op": "expect_fired_timers", "timers": names} for names in (["a"], ["a", "b"])]
    service = {"function": {**WORDS, "name": process_scripts.SERVICE}, "tables": {}, "query": "(timers)"}
    steps = [*timers, first, snapshot, second, fired[1], restore, fired[0], second, fired[1]]
    verdict = scripted(read_service(read, steps=steps, **service), [])
    assert verdict.status == "passed", verdict.problems


def test_the_watermark_of_a_table_is_told(read):
    steps = [{"op": "watermark", "to": 5, "table": "t"}, {"op": "expect_table_watermark", "table": "t", "watermark": 5}]
    assert scripted(*read(steps=steps, expected={"rows": []})).status == "passed"
    wrong = [steps[0], {**steps[1], "watermark": 6}]
    assert scripted(*read(steps=wrong, expected={"rows": []})).problems == ["steps.watermark: expected 6, found 5"]


def test_timers_that_fired_are_told_by_name_or_in_full_and_cleared(read):
    timer = {"key": "k", "name": "t", "time_ms": 5}
    steps = [{"op": "register_timer", **timer}, {"op": "watermark", "to": 5, "table": "table-a"}]
    fired = {"op": "expect_fired_timers", "timers": [timer]}
    after = [{**fired, "timers": ["t"]}, {"op": "clear_fired_timers"}, {**fired, "timers": []}]
    service = {"function": {**WORDS, "name": process_scripts.SERVICE}, "tables": {}, "query": "(timers)"}
    for wanted, problem in ((5, []), (6, ["steps.timers.time_ms: expected 6, found 5"])):
        told = [*steps, {**fired, "timers": [{**timer, "time_ms": wanted}]}, *after]
        case = read_service(read, steps=told, expected={"rows": [["k", "t", 5]]}, **service)
        assert scripted(case, []).problems == problem


def test_a_row_of_a_table_that_the_call_does_not_have_may_be_refused(read):
    steps = [{"op": "row", "table": "u", "values": ["a"]}]
    verdict = scripted(*read(steps=steps, expected_error="no table argument 'u'"))
    assert verdict.status == "passed", verdict.problems


def test_a_script_whose_function_never_ends_is_refused_in_time(read, monkeypatch):
    case, bound = read(steps=[{"op": "row", "table": "t", "values": ["endless"]}], expected={"rows": []})
    monkeypatch.setattr(process_scripts, "limited", lambda: limited(0.2))
    assert "took more than 0.2 s" in scripted(case, bound).problems[0]


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ({"op": "jump"}, r"steps\[0\].op: found 'jump', expected one of row"),
        ({"op": "row", "table": "t"}, r"steps\[0\].values: found nothing"),
        ({"op": "restore", "name": "s"}, "steps.name: found 's', expected the name of a snapshot"),
    ],
)
def test_a_step_that_cannot_be_done_is_malformed(read, step, line):
    with pytest.raises(CaseError, match=line):
        scripted(*read(steps=[step], expected={"rows": []}))


def test_calls_are_found_in_any_case_of_letters():
    assert called_in_from("select * from lateral table(f(table t)) join g(table t)") == ["f", "g"]


def test_words_of_clauses_are_no_calls():
    query = "SELECT * FROM t JOIN (SELECT f(1)) ON `g h`(1) UNION (SELECT 1) HAVING (SELECT 1)"
    assert called_names(SimpleNamespace(setup=(), query=query)) == ["f", "g h"]


def test_a_function_without_further_words_is_known_by_the_table_that_it_takes(read):
    case, (bound,) = read(function={"name": "Counting"})
    assert bound.name == "counting"
    assert process_sql(case, [bound])[0] == ["SELECT * FROM `counting`(rows => TABLE t PARTITION BY k)"]
    taken = process_sql(case, [bound], lambda name: name == "counting")[0]
    assert taken == ["SELECT * FROM `counting@1`(rows => TABLE t PARTITION BY k)"]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ({}, ""),
        ({"query": "SELECT * FROM f()"}, "no table"),
        ({"tables": {"t": {"view": "SELECT 1 AS k"}}}, "the result of another query"),
        ({"function": {**WORDS, "timers": "onTimer: emit"}}, "timers fire at the end"),
    ],
)
def test_what_spark_cannot_stream_has_a_reason(read, item, why):
    reason = not_a_stream(*read(**item))
    assert why in reason and bool(reason) is bool(why)


def timed(*times):
    columns = [{"name": "k", "type": "STRING"}, {"name": "ts", "type": "TIMESTAMP_LTZ(3)"}]
    return {"tables": {"t": {"columns": columns, "rows": [["a", time] for time in times], **TIMED}}}


def test_watermarks_must_be_ones_that_spark_has(read):
    assert not_a_stream(*read(**timed("2025-01-01T00:00:00Z"))) == ""
    assert "not after 1970" in not_a_stream(*read(**timed("1970-01-01T00:00:01Z")))
    last = {"expected": {"rows": [["a", "watermark 9223372036854775807"]]}}
    assert "end of the input" in not_a_stream(*read(**timed("2025-01-01T00:00:00Z"), **last))
    passing = {"function": {**WORDS, "name": "Passing"}, "query": "SELECT * FROM f(rows => TABLE t)"}
    assert "row semantics" in not_a_stream(*read(**timed("2025-01-01T00:00:00Z"), **passing))
