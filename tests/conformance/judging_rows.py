"""Comparison of actual with expected rows: end states, changes, rows after events and in phases."""

import datetime
import operator
import re
import zoneinfo
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from tests.conformance.compare import difference, end_state
from tests.conformance.expectation import Expectation, ExpectedRow
from tests.conformance.observation import EQUIVALENT, Emitted, Observation, Run
from tests.conformance.verdict import Verdict

__all__ = ["counted", "judge_rows"]

_MOMENT = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(\d*?)0*$")
_OF_BATCH = tuple(
    f"{where}{name}{inside}"
    for name in ("batch_window_rows", "batch_equivalent") for where in ("", "expected.") for inside in ("", ".rows")
)  # fmt: skip
"""Rows that a batch gives in place of those of a stream."""
_REST = re.compile(r"\b(?:rest|remaining|others?|remainder)\b", re.IGNORECASE)


def judge_rows(expected: Expectation, seen: Observation, verdict: Verdict) -> None:
    """Compares the rows of every run, depending on the fields of the case."""
    ran = [run for run in seen.runs if run.rows is not None]
    if ran:
        # These fields say how to read the rows; the comparison takes them into account.
        expected.note("expected.changelog", "materialized")
    for run in ran:
        wrong = _compared(expected, seen, run, verdict) or _phases(expected, run, verdict)
        if run.under == EQUIVALENT:
            expected.note("batch_equivalent", "expected.batch_equivalent")
        if wrong is not None:
            verdict.problems.append(f"{run.how}{f' with {run.under}' if run.under else ''}: {wrong}")
    counted(
        expected, seen, verdict, "rows_emitted_before_restart", "before_restart",
        "{0} rows before the restart, {1} expected",
    )  # fmt: skip


def _phases(expected: Expectation, run: Run, verdict: Verdict) -> str | None:
    """Compares the rows before and after a restart. "the rest" are those rows of the case that no other phase has."""
    given = expected.peek("expected.phases") or []
    told = [each for one in (given if isinstance(given, list) else [given]) for each in one.items()]
    if not told or not any(row.phase for row in run.rows or ()):
        return None
    left = [list(each.values) for each in expected.rows("expected.rows") or ()]
    for name, wanted in told:
        if isinstance(wanted, str) and not _REST.search(wanted):
            continue
        rows = left if isinstance(wanted, str) else [list(each.values) for each in expected.rows_of(wanted)]
        left = left if isinstance(wanted, str) else [row for row in left if row not in rows]
        found = [_shown(row.values) for row in run.rows or () if row.phase == name]
        expected.note_all(f"expected.phases.{name}")
        verdict.compared += max(len(rows), len(found))
        wrong = difference([_read(row, run) for row in rows], found, ordered=expected.peek("expected.ordered") is True)
        if wrong is not None:
            return f"{name}: {wrong}"
    return None


def counted(
    expected: Expectation, seen: Observation, verdict: Verdict, field: str, attribute: str, wrong: str,
    fits: Callable[[Any, Any], bool] = operator.eq,
) -> None:  # fmt: skip
    """Compares a count of each run with a field of the case; `wrong` formats the found and the expected count."""
    wanted = expected.peek(field)
    found = [(run, getattr(run, attribute)) for run in seen.runs if getattr(run, attribute) is not None]
    if wanted is None or not found:
        return
    expected.note(field)
    for run, value in found:
        verdict.compared += 1
        if not fits(value, wanted):
            verdict.problems.append(f"{run.how}: {wrong.format(value, wanted)}")


def _compared(expected: Expectation, seen: Observation, run: Run, verdict: Verdict) -> str | None:
    assert run.rows is not None
    if run.how == "changelog" and seen.applied:
        # The table that they produce is compared, which has to be asserted beside them if it is empty.
        expected.note(*(f"expected.changes{part}" for part in ("", ".kind", ".row", ".row_kind", ".values")))
    elif run.how == "changelog":
        return _changes(expected, seen, run, verdict)
    steps = expected.peek("expected.steps")
    if isinstance(steps, list) and steps and "after_event" in steps[0]:
        return _after_events(expected, seen, run, verdict)
    own = next((name for name in _OF_BATCH if isinstance(expected.peek(name), list)), None)
    if run.how == "batch" and own is not None:
        rows: Sequence[ExpectedRow] | None = expected.rows(own)
    elif expected.peek("expected.final_rows") is not None:
        rows = expected.rows("expected.final_rows")
    elif expected.peek("expected.rows") is not None:
        rows = expected.rows("expected.rows")
    elif expected.peek("expected.changes") is not None:
        changes = expected.rows("expected.changes") or []
        expected.note("expected.changes.kind", "expected.changes.row_kind")
        rows = [ExpectedRow(row) for row in end_state((each.kind or "+I", each.values) for each in changes)]
    else:
        return None
    return _rows(expected, seen, run, list(rows or ()), verdict)


def _rows(expected: Expectation, seen: Observation, run: Run, rows: list[ExpectedRow], verdict: Verdict) -> str | None:
    assert run.rows is not None
    kinds = any(row.kind is not None for row in rows)
    found = list(run.rows)
    ordered = bool(
        expected.peek("expected.final_rows_ordered") if expected.peek("expected.final_rows") is not None
        else expected.peek("expected.ordered") is True
    )  # fmt: skip
    ordered = ordered and run.how != "stream"
    materialized = bool(expected.peek("materialized")) or seen.applied
    if kinds and (run.has_kinds or all(row.kind in (None, "+I") for row in rows)) and not materialized:
        expected.note("expected.rows.kind", "expected.rows.row_kind")
        wanted = [[_kind(row.kind, seen), *_read(row.values, run)] for row in rows]
        have = [[_kind(each.kind, seen), *_shown(each.values)] for each in found]
    else:
        state: Any = [(row.kind or "+I", row.values) for row in rows]
        if materialized or any(kind != "+I" for kind, _ in state):
            expected.note("expected.rows.kind", "expected.rows.row_kind")
            state = [("+I", row) for row in end_state(state, run.upsert_key)]
        wanted = [_read(values, run) for _, values in state]
        if run.has_kinds:
            changes = [(each.kind, each.values) for each in found]
            found = [Emitted(row) for row in end_state(changes, run.upsert_key)]
        have = [_shown(each.values) for each in found]
    if any(row.phase for row in rows) and any(each.phase for each in found) and len(wanted) == len(rows):
        expected.note("expected.rows.phase")
        wanted = [[*values, row.phase] for values, row in zip(wanted, rows, strict=True)]
        have = [[*values, each.phase] for values, each in zip(have, found, strict=True)]
    verdict.compared += max(len(wanted), len(have))
    return difference(wanted, have, ordered=ordered, truncated=seen.truncated)


def _kind(kind: str | None, seen: Observation) -> str:
    return "-D" if kind == "-U" and seen.takes_deletes else kind or "+I"


def _changes(expected: Expectation, seen: Observation, run: Run, verdict: Verdict) -> str | None:
    """Compares the changes of each key in order. Keys are spread over partitions, so the order between keys is free."""
    name = "expected.changes" if expected.peek("expected.changes") is not None else "expected.rows"
    rows = expected.rows(name)
    if rows is None or run.rows is None:
        return None
    expected.note(f"{name}.kind", f"{name}.row_kind")
    wanted, found = _by_key(rows, run, seen), _by_key(run.rows, run, seen)
    verdict.compared += len(rows)
    for key in dict.fromkeys((*wanted, *found)):
        wrong = difference(wanted[key], found[key], ordered=True, truncated=seen.truncated)
        if wrong is not None:
            return f"the changes of key {key}: {wrong}"
    return None


def _by_key(rows: Sequence[ExpectedRow | Emitted], run: Run, seen: Observation) -> defaultdict[str, list[list[Any]]]:
    grouped: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for row in rows:
        values = _read(row.values, run) if isinstance(row, ExpectedRow) else list(row.values)
        grouped[str(tuple(str(value) for value in values[: run.keys]))].append([_kind(row.kind, seen), *values])
    return grouped


def _after_events(expected: Expectation, seen: Observation, run: Run, verdict: Verdict) -> str | None:
    """Compares rows by the event after which they were emitted; the order of rows of one event is free."""
    assert run.rows is not None
    steps = expected.take("expected.steps") or []
    expected.note(
        "expected.steps.rows", "expected.steps.rows.row", "expected.steps.rows.values", "expected.steps.rows.kind"
    )
    timed = all(each.after is not None for each in run.rows)
    if timed:
        expected.note("expected.steps.after_event")
    wanted = [
        [*([step["after_event"]] if timed else []), _kind(each.get("kind"), seen), *_read(each.get("row"), run)]
        for step in steps for each in step["rows"]
    ]  # fmt: skip
    have = [[*([each.after] if timed else []), _kind(each.kind, seen), *_shown(each.values)] for each in run.rows]
    verdict.compared += max(len(wanted), len(have))
    return difference(wanted, have, ordered=False, truncated=seen.truncated)


def _read(values: Sequence[Any], run: Run) -> list[Any]:
    """Returns expected values in the form of the run: an instant of a column without zone is in the session's zone."""
    types = [type_ for _, type_ in run.columns or ()]
    if len(types) != len(values):
        types = [""] * len(values)
    zone = zoneinfo.ZoneInfo(run.zone)
    return [_expected(value, zone) if type_ == "timestamp_ntz" else _text(value)
            for value, type_ in zip(values, types, strict=True)]  # fmt: skip


def _shown(values: Sequence[Any]) -> list[Any]:
    return [_text(value) for value in values]


def _expected(value: Any, zone: datetime.tzinfo) -> Any:
    if not isinstance(value, str) or not value.endswith("Z"):
        return value
    moment = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    return moment.astimezone(zone).replace(tzinfo=None).isoformat()


def _text(value: Any) -> Any:
    """Normalizes texts whose spelling is free: joined values, trailing zeros of times, the length of types."""
    if not isinstance(value, str):
        return value
    if (match := _MOMENT.match(value)) is not None:
        return match[1] + (f".{match[2]}" if match[2] else "")
    if "ROW<" in value:
        value = re.sub(r"VARCHAR\(\d+\)", "STRING", value).replace(" NOT NULL", "")
    return "|".join(sorted(value.split("|"))) if "|" in value else value
