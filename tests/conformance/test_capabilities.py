"""The declared exceptions: every entry can be read, is needed, and holds only if its statement was observed."""

import re

import pytest

from tests.conformance.capabilities import Capabilities, Capability
from tests.conformance.cases import Case
from tests.conformance.observation import Failure, Observation, Run
from tests.conformance.suite import FILES, FOLDER

DECLARED = Capabilities()


def seen(message=None):
    run = Run("batch", rows=()) if message is None else Run("batch", failure=Failure(message, planning=True))
    return Observation(runs=[run])


@pytest.mark.parametrize("each", DECLARED.all, ids=lambda each: each.pattern)
def test_every_capability_has_a_reason_and_one_thing_to_see(each):
    assert each.reason
    re.compile(each.pattern)
    re.compile(each.refusal)
    assert sum(map(bool, (each.refusal, each.runs, each.absent, each.shows))) == 1


@pytest.mark.skipif(not FILES, reason=f"no conformance cases at {FOLDER}")
@pytest.mark.parametrize("each", DECLARED.all, ids=lambda each: each.pattern)
def test_every_capability_is_needed(each):
    assert any(each.meets(case) for file in FILES for case in file.cases)


def test_a_refusal_must_be_the_stated_one():
    capability = Capability("query", "VARIANT", "none here", refusal="VARIANT cannot be sent")
    assert capability.happened(seen("type VARIANT cannot be sent to a remote function"))
    assert not capability.happened(seen("no such table"))
    assert not capability.happened(seen())


def test_a_limit_that_does_not_exist_must_be_seen_not_to_exist():
    capability = Capability("error", "not supported", "no such limit", runs=True)
    assert capability.happened(seen())
    assert not capability.happened(seen("not supported"))
    assert not capability.happened(Observation())


def test_a_difference_must_be_the_stated_one():
    capability = Capability("query", "queue", "no order", shows="in another order")
    assert capability.happened(seen(), ["batch: expected (1), found (2) (the same rows in another order)"])
    assert not capability.happened(seen(), ["batch: 1 rows are missing: [(2,)]"])
    assert not capability.happened(seen("in another order"))


def test_a_name_that_is_there_makes_the_case_apply():
    case = Case("x", "f", "SELECT LAMBDA", (), ())
    assert Capability("query", "LAMBDA", "none here", absent="ArgumentTrait.NO_SUCH_TRAIT").meets(case)
    assert not Capability("query", "LAMBDA", "none here", absent="ArgumentTrait.SET_SEMANTIC_TABLE").meets(case)


def test_a_stream_may_be_refused_with_a_declared_message_only():
    for message, left in (("OVER is not supported on a stream; aggregate by windows of time", 1), ("no such table", 2)):
        stream = Run("stream", failure=Failure(message, planning=True))
        observed = Observation(runs=[Run("batch", rows=()), stream])
        DECLARED.leave_out_streams(observed)
        assert len(observed.runs) == left
        assert bool(observed.notes) is (left == 1)


def test_a_query_that_is_refused_in_batch_too_keeps_its_failures():
    failure = Failure("OVER is not supported on a stream", planning=True)
    observed = Observation(runs=[Run("batch", failure=failure), Run("stream", failure=failure)])
    DECLARED.leave_out_streams(observed)
    assert len(observed.runs) == 2


def test_a_capability_is_met_by_a_field_of_the_case_and_by_nothing_else():
    capability = Capability("query", r"\bLAMBDA\b", "none here")
    assert capability.meets(Case("x", "f", "SELECT LAMBDA", (), ()))
    assert not capability.meets(Case("LAMBDA", "f", "SELECT 1", (), ()))
