"""The oracle of fairness: it allows for calls on their way, and for no more."""

import pytest

from tests.simulation.oracles import Violation
from tests.simulation.shares import Shares
from udf_server.base.fairness import FairQueue, Party

ONE, OTHER = Party("one", "job"), Party("other", "job")


def waiting() -> FairQueue[int]:
    """One row of each of two callers."""
    queue: FairQueue[int] = FairQueue()
    for party in (ONE, OTHER):
        queue.push(party, 0)
    return queue


def began(shares: Shares, rows: int, party: Party) -> None:
    for x in range(rows):
        shares.began(x, 0.0, None, party)


def test_calls_that_were_allowed_before_the_others_waited_may_begin_later():
    shares, queue = Shares(), waiting()
    shares.look(queue, 6, "here", coming=20)
    began(shares, 20, ONE)
    shares.look(queue, 6, "here")


def test_calls_that_were_allowed_and_have_not_begun_are_served_soon():
    shares, queue = Shares(), waiting()
    shares.look(queue, 6, "here")
    began(shares, 7, OTHER)
    shares.look(queue, 6, "here", coming=1)
    with pytest.raises(Violation, match=r"served \[0, 7\] rows"):
        shares.look(queue, 6, "here")


def test_more_than_the_calls_on_their_way_is_unfair():
    shares, queue = Shares(), waiting()
    shares.look(queue, 6, "here", coming=20)
    began(shares, 27, ONE)
    with pytest.raises(Violation, match=r"callers that waited were served \[0, 27\] rows"):
        shares.look(queue, 6, "here")
