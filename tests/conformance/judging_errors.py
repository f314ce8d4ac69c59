"""Errors that a case expects, and unexpected ones."""

import re

from tests.conformance.expectation import Expectation
from tests.conformance.messages import compared
from tests.conformance.observation import Failure, Observation
from tests.conformance.verdict import Verdict

__all__ = ["judge_error"]

_MESSAGES = ("expected_error", "expected.message_contains", "expected.error.message_contains")
_PHASES = ("expected.phase", "expected.error.raised_at")
_OWN = re.compile(r"\b(function's own|own|original|user's) (error|exception|message)\b", re.IGNORECASE)
_PLANNING = re.compile(r"plan|valid|construct|compil|declar|registr", re.IGNORECASE)


def judge_error(expected: Expectation, seen: Observation, verdict: Verdict) -> bool:
    """Whether the case expects no error and there was none, so that rows are to be judged."""
    wanted = next((str(expected.take(name)) for name in _MESSAGES if expected.peek(name) is not None), None)
    failures = [(run, run.failure) for run in seen.runs if run.failure is not None]
    if wanted is None:
        for run, failure in failures[:1]:
            verdict.problems.append(f"{run.how}{_under(run.under)}: failed: {short(failure.message)}")
        return not failures
    if not failures:
        if seen.refusal:
            return False
        rows = next((len(run.rows) for run in seen.runs if run.rows is not None), None)
        found = "nothing was run" if rows is None else f"the query gave {rows} rows"
        verdict.problems.append(f"expected the error {wanted!r}; {found}")
        return False
    for _, failure in failures:
        verdict.compared += 1
        _message(wanted, failure, seen, verdict)
        _phase(expected, failure, verdict)
    _beside(expected, seen, verdict)
    return False


def _message(wanted: str, failure: Failure, seen: Observation, verdict: Verdict) -> None:
    message = failure.message
    for own, expected in seen.names.items():
        message = re.sub(rf"(?<!\w){re.escape(own)}(@\w+)?(?!\w)", expected, message)
    if _OWN.search(wanted):
        if not any(text in message for text in seen.own_messages if text):
            verdict.wording = (wanted, short(message), "the function's own message")
        return
    fits, lacks = compared(wanted, message)
    if not fits:
        verdict.wording = (wanted, short(message), lacks)


def _phase(expected: Expectation, failure: Failure, verdict: Verdict) -> None:
    name = next((name for name in _PHASES if expected.peek(name) is not None), None)
    if name is None:
        return
    text = str(expected.take(name))
    if failure.planning != (_PLANNING.search(text) is not None):
        when = "while the query was planned" if failure.planning else "while the query ran"
        verdict.problems.append(f"expected the error at {text}; it came {when}")


def _beside(expected: Expectation, seen: Observation, verdict: Verdict) -> None:
    """Notes `where` if it says that the text is of a cause: the compared message contains the causes, too."""
    if expected.peek("expected.where") is not None and "cause" in str(expected.peek("expected.where")):
        expected.note("expected.where")


def short(error: str) -> str:
    """Returns one line of at most 400 characters, without the frames of tracebacks."""
    if "Traceback (most recent call last)" in error:
        expected = [each for each in error.splitlines() if not re.match(r"\s|\s*$|.*Traceback \(most", each)]
        error = "\n".join(expected) or error
    line = " ".join(error.split())
    return line if len(line) < 400 else f"{line[:400]}..."


def _under(variant: str) -> str:
    return f" with {variant}" if variant else ""
