"""Judging: compares an expectation with an observation, without Spark, servers or files."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance import judging_columns, judging_errors, judging_rows
from tests.conformance.allowances import exact_calls
from tests.conformance.expectation import Expectation, alternatives, without_alternatives
from tests.conformance.facts import holds, is_applied
from tests.conformance.judging_rows import counted
from tests.conformance.observation import Observation
from tests.conformance.values import same
from tests.conformance.verdict import Status, Verdict

__all__ = ["judge"]

_NOTHING = object()
_UNORDERED = re.compile(
    r"expected_pending_timers|expected\.assignments\.windows|expected\.merges?\.(merged_from|after)"
)
SLACK_MS = 20.0
"""How much sooner than said a run may end: clocks of two processes differ."""


def judge(expectation: Mapping[str, Any], seen: Observation) -> Verdict:
    """Compares an observation with the expectation, which has the shape of the case's file, or with an alternative."""
    others = alternatives(expectation)
    read = [name for name, _ in others]
    verdict = _judged(expectation, seen, read)
    for _, other in others:
        again = _judged(other, seen, read) if verdict.problems else verdict
        if not again.problems:
            verdict = again
    return verdict


def _judged(expectation: Mapping[str, Any], seen: Observation, read: Sequence[str]) -> Verdict:
    expected, verdict = Expectation(expectation), Verdict()
    verdict.held = without_alternatives(expectation) if read else None
    for name in read:
        expected.note_all(name)
    verdict.notes += seen.notes
    verdict.problems += seen.contradictions
    verdict.compared += seen.compared
    # The field says how to read the others.
    expected.note("expected.ordered", "expected.final_rows_ordered")
    _kind(expected, verdict)
    if judging_errors.judge_error(expected, seen, verdict):
        judging_rows.judge_rows(expected, seen, verdict)
        judging_columns.judge_columns(expected, seen, verdict)
    _calls(expected, seen, verdict)
    _elapsed(expected, seen, verdict)
    _late(expected, seen, verdict)
    for name, found in seen.found.items():
        wanted = expected.peek(name, _NOTHING)
        if wanted is not _NOTHING:
            _mirrored(expected, verdict, name, wanted, found)
    _facts(expected, seen, verdict)
    _remark(expected, seen)
    verdict.unchecked = [*expected.unchecked, *_modes(seen, verdict)]
    verdict.waived = frozenset(expected.waived)
    if seen.refusal and not verdict.problems:
        verdict.decided = Status.NOT_APPLICABLE
        verdict.notes.append(seen.refusal)
    return verdict


def _kind(expected: Expectation, verdict: Verdict) -> None:
    kind = expected.take("expected.kind")
    if kind is None:
        return
    calls = isinstance(expected.peek("expected.calls"), list)
    rows = any(expected.peek(f"expected.{name}") is not None for name in ("rows", "changes", "final_rows", "columns"))
    message = expected.peek("expected.message_contains") is not None
    fits = {
        "rows": rows, "error": message, "plan": not message, "changelog": rows,
        "bundle_calls": calls, "combine": expected.peek("expected.parts") is not None,
        "sequencing": expected.peek("expected.steps") is not None,
    }  # fmt: skip
    if not fits.get(kind, True):
        verdict.problems.append(f"expected.kind is {kind!r}, which is not what the other fields assert")


def _modes(seen: Observation, verdict: Verdict) -> list[str]:
    """Returns the modes that the case requires and that did not run, as unchecked fields."""
    if not seen.runs or any(run.failure is not None for run in seen.runs):
        return []
    # A stream of a result would show the changes of the result.
    ran = {"stream" if run.how in ("stream", "script", "harness", "changelog") else "batch" for run in seen.runs}
    return [f"mode: {mode}" for mode in sorted(seen.modes - ran)]


def _calls(expected: Expectation, seen: Observation, verdict: Verdict) -> None:
    counted(expected, seen, verdict, "expected.invocations", "calls", "{0} calls where {1} are expected")
    counted(expected, seen, verdict, "expected.max_open_calls", "max_open", "{0} calls open at once, {1} expected")
    text = expected.peek("expected.calls")
    allowed = None
    if text is not None and not isinstance(text, list):
        allowed = exact_calls(str(text), seen.units, seen.written_calls)
    if allowed is None:
        return
    least, most = allowed
    wanted = str(most) if least == most else f"{least} to {most}"
    counted(
        expected, seen, verdict, "expected.calls", "calls", f"{{0}} calls where {{1!r}} allows {wanted}",
        lambda calls, _: least <= calls <= most,
    )  # fmt: skip


def _elapsed(expected: Expectation, seen: Observation, verdict: Verdict) -> None:
    counted(
        expected, seen, verdict, "expected.minimum_elapsed_ms", "elapsed_ms",
        "took {0:.0f} ms, expected at least {1} ms", lambda took, least: took + SLACK_MS >= float(least),
    )  # fmt: skip


def _late(expected: Expectation, seen: Observation, verdict: Verdict) -> None:
    counted(expected, seen, verdict, "expected.late_rows_dropped", "late_rows", "{0} late rows dropped, {1} expected")
    nulls = expected.peek("expected.null_time_rows_dropped")
    if nulls is not None and seen.null_times is not None and not verdict.problems:
        expected.note("expected.null_time_rows_dropped")
        verdict.compared += 1
        if nulls != seen.null_times:
            verdict.problems.append(f"{seen.null_times} rows without a time came in and did not come out, not {nulls}")


def _mirrored(expected: Expectation, verdict: Verdict, name: str, wanted: Any, found: Any) -> None:
    """Compares the fields that both have, and notes them."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        for key, value in wanted.items():
            if key in found:
                _mirrored(expected, verdict, f"{name}.{key}", value, found[key])
        return
    if _are_mappings(wanted) and _are_mappings(found):
        if len(wanted) != len(found):
            verdict.problems.append(f"{name}: {len(wanted)} expected, found {len(found)}")
        for one, other in zip(wanted, found, strict=False):
            _mirrored(expected, verdict, name, one, other)
        return
    expected.note(name)
    verdict.compared += 1
    if _UNORDERED.fullmatch(name) and isinstance(wanted, list):
        wanted, found = sorted(wanted, key=str), sorted(found, key=str)
    if isinstance(wanted, list) and found is None and not any(wanted):
        # A row without a value, or no row at all.
        return
    if not same(wanted, found):
        verdict.problems.append(f"{name}: expected {wanted}, found {found}")


def _are_mappings(values: Any) -> bool:
    return isinstance(values, Sequence) and bool(values) and all(isinstance(each, Mapping) for each in values)


def _remark(expected: Expectation, seen: Observation) -> None:
    """Notes what an option says of the comparison, if it is taken into account."""
    told = expected.peek("config.assert")
    if told is not None and is_applied(str(told)) and seen.applied:
        expected.note("config.assert")


def _facts(expected: Expectation, seen: Observation, verdict: Verdict) -> None:
    fact = expected.peek("expected_fact")
    if fact is None or any(run.failure for run in seen.runs):
        if fact is not None and seen.runs and not verdict.problems:
            failed = next(run.failure for run in seen.runs if run.failure)
            verdict.problems.append(f"expected {fact!r}; the query failed: {failed.message}")
        return
    known, wrong = holds(str(fact), seen, script="steps" in expected.raw)
    if known:
        expected.note("expected_fact")
        verdict.compared += 1
        if wrong:
            verdict.problems.append(wrong)
