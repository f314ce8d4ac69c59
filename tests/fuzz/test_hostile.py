"""The short form of the attacks of `make fuzz`, on a server of its own."""

import random

import pytest

from tests.fuzz.attacks import Streams
from tests.fuzz.hostile import Hostile

pytestmark = pytest.mark.long

SECONDS = 12.0


def test_a_server_under_attack_answers_its_neighbour_and_stays_as_it_was():
    hostile = Hostile(seed=11)
    hostile.run(range(1_000), SECONDS)
    assert hostile.problems == []
    # The attacks reach the code that they are meant for.
    assert set(hostile.ends) - {"no answer", "not begun", "reset"}


def test_a_seed_and_a_number_say_all_of_an_attack():
    first, again, other = (Streams(random.Random(seed)).words for seed in ("7/3", "7/3", "7/4"))
    assert first == again != other
