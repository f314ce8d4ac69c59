"""Expectations against observations: passes, failures, unchecked fields, and alterations."""

import pytest

from tests.conformance.facts import is_applied, takes_deletes
from tests.conformance.judging import judge
from tests.conformance.messages import compared
from tests.conformance.mutating import mutations
from tests.conformance.observation import EQUIVALENT, Emitted, Failure, Observation, Run
from tests.conformance.verdict import Status

COLUMNS = [("k", "string"), ("v", "bigint")]


def batch(*rows, **more):
    return Run(
        "batch", columns=COLUMNS, rows=[row if isinstance(row, Emitted) else Emitted(row) for row in rows], **more
    )


def told(**expected):
    return {"expected": expected}


def status(expectation, *runs, **seen):
    return judge(expectation, Observation(runs=list(runs), **seen)).status


def test_the_right_rows_pass_and_others_do_not():
    expected = told(rows=[["a", 1], ["b", 2]], ordered=True)
    assert status(expected, batch(("a", 1), ("b", 2))) is Status.PASSED
    assert status(expected, batch(("b", 2), ("a", 1))) is Status.FAILED
    assert status(expected, batch(("a", 1))) is Status.FAILED


def test_a_field_that_nothing_looks_at_is_named():
    verdict = judge(told(rows=[["a", 1]], colour="green"), Observation(runs=[batch(("a", 1))]))
    assert verdict.status is Status.PARTLY
    assert verdict.unchecked == ["expected.colour"]


def test_nothing_compared_is_vacuous():
    assert status(told(rows=[]), batch()) is Status.VACUOUS
    assert status({}, batch(("a", 1))) is Status.VACUOUS


def test_a_mode_that_was_asked_for_and_not_run_is_unchecked():
    both = frozenset({"batch", "stream"})
    verdict = judge(told(rows=[["a", 1]]), Observation(runs=[batch(("a", 1))], modes=both))
    assert (verdict.status, verdict.unchecked) == (Status.PARTLY, ["mode: stream"])


def test_names_and_types_of_columns_are_compared():
    expected = told(rows=[["a", 1]], columns=[{"name": "k", "type": "STRING"}, {"name": "v", "type": "INT"}])
    assert status(expected, batch(("a", 1))) is Status.PASSED
    named = told(rows=[["a", 1]], columns=[{"name": "k", "type": "STRING"}, {"name": "w", "type": "INT"}])
    assert status(named, batch(("a", 1))) is Status.FAILED
    typed = told(rows=[["a", 1]], columns=[{"name": "k", "type": "DATE"}, {"name": "v", "type": "INT"}])
    assert status(typed, batch(("a", 1))) is Status.FAILED


def test_a_column_that_the_query_does_not_name_has_the_name_of_a_sink():
    expected = told(rows=[["a", 1]], columns=[{"name": "k", "type": "STRING"}, {"name": "w", "type": "INT"}])
    run = batch(("a", 1))
    verdicts = {
        origin: judge(expected, Observation(runs=[run], named=["column", origin]))
        for origin in ("alias", "column", "expression")
    }
    assert verdicts["alias"].status is Status.FAILED
    assert verdicts["column"].unchecked == ["expected.columns.name"]
    assert (verdicts["expression"].status, verdicts["expression"].waived) == (
        Status.PASSED, frozenset({("expected.columns", 1)})
    )  # fmt: skip


def test_kinds_of_rows_are_compared_where_the_run_has_them():
    expected = told(rows=[{"kind": "+U", "values": ["a", 2]}])
    assert status(expected, batch(Emitted(("a", 2), "+U"), has_kinds=True)) is Status.PASSED
    assert status(expected, batch(Emitted(("a", 2), "+I"), has_kinds=True)) is Status.FAILED


def test_changes_are_compared_key_by_key():
    changes = [
        {"row_kind": "+I", "row": ["a", 1]},
        {"row_kind": "-U", "row": ["a", 1]},
        {"row_kind": "+U", "row": ["a", 3]},
    ]
    expected = told(kind="changelog", changes=changes, final_rows=[["a", 3]])
    end = batch(("a", 3))
    seen = [Emitted(("a", 1)), Emitted(("a", 1), "-U"), Emitted(("a", 3), "+U")]
    assert status(expected, end, Run("changelog", rows=seen, keys=1)) is Status.PASSED
    assert status(expected, end, Run("changelog", rows=[*seen[:1], seen[2], seen[1]], keys=1)) is Status.FAILED
    assert status(expected, end) is Status.PARTLY


def test_rows_are_compared_by_the_event_after_which_they_came():
    expected = told(steps=[{"after_event": 3, "rows": [{"kind": "+I", "row": ["a", 1]}]}])
    assert status(expected, Run("stream", rows=[Emitted(("a", 1), after=3)])) is Status.PASSED
    assert status(expected, Run("stream", rows=[Emitted(("a", 1), after=4)])) is Status.FAILED


def test_calls_are_exact_where_the_case_is():
    expected = told(rows=[["a", 1]], calls="1 per row")
    seen = {"units": {"row": 3}}
    assert status(expected, batch(("a", 1), calls=3), **seen) is Status.PASSED
    assert status(expected, batch(("a", 1), calls=2), **seen) is Status.FAILED
    assert status(told(rows=[["a", 1]], calls="at most 1 per row"), batch(("a", 1), calls=2), **seen) is Status.PASSED
    assert status(told(rows=[["a", 1]], max_open_calls=2), batch(("a", 1), max_open=3)) is Status.FAILED
    assert status(told(rows=[["a", 1]], minimum_elapsed_ms=500), batch(("a", 1), elapsed_ms=100.0)) is Status.FAILED


def test_an_error_has_a_phase():
    expected = told(kind="error", message_contains="Unknown change operation: 'X'", phase="planning")
    message = "map has an unknown change operation: 'X'"
    assert status(expected, Run("batch", failure=Failure(message, planning=True))) is Status.PASSED
    assert status(expected, Run("batch", failure=Failure(message, planning=False))) is Status.FAILED
    assert status(expected, batch(("a", 1))) is Status.FAILED
    other = Run("batch", failure=Failure("no such column: f1", planning=True))
    assert status(expected, other) is Status.REFUSED


@pytest.mark.parametrize(
    ("gist", "message", "fits"),
    [
        ("timed out", "TIMEOUT: timed out: no result within 1 s", True),
        ("timed out", "no such column: f1", False),
        ("Retract is not implemented for `f`", "Retract functionality is implemented for f", False),
        ("Retract is not implemented for `f`", "Retract functionality is not implemented for f", True),
        ("Invalid column 'no'. Available columns are: [name, score]", "no column 'no'; there are name, score", True),
        ("Invalid column 'no'. Available columns are: [name, score]", "no column 'no'; there are name", False),
        ("got size 5000ms and slide 2000ms", "size must be a multiple, but is 5000 ms with slide 2000 ms", True),
    ],
)
def test_a_message_is_compared_by_its_facts(gist, message, fits):
    assert compared(gist, message)[0] is fits


def test_every_alteration_is_noticed():
    expectation = {
        "expected_columns": [{"name": "k", "type": "STRING"}, {"name": "v", "type": "BIGINT"}],
        "expected": {
            "kind": "rows", "ordered": True, "invocations": 2,
            "rows": [{"kind": "+I", "values": ["a", 1]}, {"kind": "+U", "values": ["b", None]}],
        },
    }  # fmt: skip
    seen = Observation(runs=[batch(Emitted(("a", 1)), Emitted(("b", None), "+U"), has_kinds=True, calls=2)])
    assert judge(expectation, seen).status is Status.PASSED
    made = list(mutations(expectation, frozenset()))
    assert {what.partition(":")[0] for what, _ in made} == {
        "expected_columns", "expected_columns.name", "expected_columns.type", "expected.kind", "expected.invocations",
        "expected.rows", "expected.rows.kind", "expected.rows.values",
    }  # fmt: skip
    assert [what for what, altered in made if judge(altered, seen).status is Status.PASSED] == []


def test_a_bound_of_time_is_altered_into_one_that_no_run_holds():
    (altered,) = [each for _, each in mutations({"expected": {"minimum_elapsed_ms": 100}}, frozenset())]
    assert altered["expected"]["minimum_elapsed_ms"] > 1_000_000


def test_another_outcome_may_be_right_as_well():
    expected = {"expected": {"rows": [["a", 1]], "alternative": {"rows": [["a", 2]]}}}
    for value in (1, 2):
        assert status(expected, batch(("a", value))) is Status.PASSED
        verdict = judge(expected, Observation(runs=[batch(("a", value))]))
        made = [altered for _, altered in mutations(verdict.held, verdict.waived)]
        assert made and all(status(altered, batch(("a", value))) is Status.FAILED for altered in made)
    assert status(expected, batch(("a", 3))) is Status.FAILED
    listed = {"expected": {"rows": [["a", 1]]}, "alternatives": [{"rows": [["a", 2]]}, {"rows": [["a", 3]]}]}
    assert status(listed, batch(("a", 3))) is Status.PASSED
    in_words = told(rows=[["a", 1]], alternative="or nothing")
    assert status(in_words, batch(("a", 1))) is Status.PARTLY


def test_rows_that_only_a_harness_emits_may_be_missing():
    expected = told(rows=[["a", 1], ["b", 2]], harness_artefacts=[["b", 2]])
    assert status(expected, batch(("a", 1), ("b", 2))) is Status.PASSED
    assert status(expected, batch(("a", 1))) is Status.PASSED
    assert status(expected, batch(("b", 2))) is Status.FAILED


def test_a_remark_allows_deletes_for_updates_or_the_table_alone():
    rows = [{"kind": "+I", "values": ["a", 1]}, {"kind": "-U", "values": ["a", 1]}, {"kind": "+U", "values": ["a", 2]}]
    deleted = [Emitted(("a", 1)), Emitted(("a", 1), "-D"), Emitted(("a", 2), "+U")]
    expected = told(rows=rows)
    assert status(expected, batch(*deleted, has_kinds=True)) is Status.FAILED
    assert status(expected, batch(*deleted, has_kinds=True), takes_deletes=True) is Status.PASSED
    assert status(expected, batch(Emitted(("a", 2)), has_kinds=True), applied=True) is Status.PASSED
    changes = told(changes=[{"row_kind": each["kind"], "row": each["values"]} for each in rows])
    changes["expected"]["final_rows"] = [["a", 2]]
    others = Run("changelog", COLUMNS, rows=[Emitted(("a", 2))], has_kinds=True, keys=1)
    assert (status(changes, others), status(changes, others, applied=True)) == (Status.FAILED, Status.PASSED)
    remarked = {**expected, "config": {"assert": "the end state is compared"}}
    assert status(remarked, batch(*deleted, has_kinds=True), applied=True) is Status.PASSED
    assert status({**told(rows=[["a", 1]]), "config": {"assert": "all is well"}}, batch(("a", 1))) is Status.PARTLY
    assert takes_deletes("A -D is fine in place of a -U.") and not takes_deletes("-U, then +U; -D at the end")
    assert is_applied("The rows once the changelog is applied.") and not is_applied("The changes of each key.")


def test_an_upsert_replaces_the_row_of_its_key():
    rows = [Emitted(("a", 1)), Emitted(("a", 2), "+U"), Emitted(("b", 3)), Emitted(("b", None), "-D")]
    materialized = {**told(rows=[{"kind": "+I", "values": ["a", 2]}]), "materialized": True}
    for expected in (told(final_rows=[["a", 2]]), materialized):
        assert status(expected, batch(*rows, has_kinds=True, upsert_key=[0])) is Status.PASSED
        assert status(expected, batch(*rows, has_kinds=True)) is Status.FAILED


def test_rows_before_and_after_a_restart_are_compared():
    expected = told(rows=[["a", 1], ["b", 2], ["c", 3]], phases=[{"before": [["a", 1]]}, {"after": "the rest"}])
    rows = [Emitted(("a", 1), phase="before"), Emitted(("b", 2), phase="after"), Emitted(("c", 3), phase="after")]
    assert status(expected, batch(*rows)) is Status.PASSED
    assert status(expected, batch(Emitted(("a", 1), phase="after"), *rows[1:])) is Status.FAILED
    assert status(expected, batch(("a", 1), ("b", 2), ("c", 3))) is Status.PARTLY


def test_a_batch_may_have_rows_of_its_own():
    expected = told(rows=[["a", 1]], batch_equivalent={"rows": [["a", 2]]})
    assert status(expected, batch(("a", 2)), Run("stream", COLUMNS, rows=[Emitted(("a", 1))])) is Status.PASSED
    assert status(expected, batch(("a", 1))) is Status.FAILED
    query = told(rows=[["a", 1]], batch_equivalent="SELECT 1")
    assert status(query, batch(("a", 1))) is Status.PARTLY
    assert status(query, batch(("a", 1), under=EQUIVALENT)) is Status.PASSED
