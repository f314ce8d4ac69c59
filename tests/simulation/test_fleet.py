"""A small fleet: what its clients do when servers come and go, and that a seed gives the same measures."""

import pytest

from tests.simulation.fleet.measures import measured
from tests.simulation.fleet.mutants import BALANCING_MUTANTS, BOUNDS, exceeded
from tests.simulation.fleet.scenarios import SCENARIOS, Size
from tests.simulation.world import worlds

SMALL = Size(clients=60, servers=5)
MEDIUM = Size(clients=160, servers=8)


def measures_of(name, seed=1, size=SMALL):
    [scenario] = [each for each in SCENARIOS if each.name == name]
    with worlds():
        return measured(scenario, size, seed)


@pytest.mark.long
@pytest.mark.parametrize("scenario", BOUNDS)
def test_the_load_of_no_server_exceeds_that_of_the_others_by_much(scenario):
    assert exceeded(measures_of(scenario, size=MEDIUM)) == ""


def test_clients_open_few_more_streams_than_they_need():
    first, then = measures_of("nothing happens", size=MEDIUM).phases
    assert first.opened < 1.3 * MEDIUM.clients
    assert then.opened < 0.05 * MEDIUM.clients


def test_each_client_of_a_server_that_becomes_slow_has_its_share_after_two_moves():
    found = measures_of("slow server", size=MEDIUM)
    slow, *others = sorted(found.looks[-1].streams)
    # It can do a tenth of what another one can do.
    assert slow < 0.3 * sum(others) / len(others)
    assert found.reconnects[0] <= 2


@pytest.mark.slow
@pytest.mark.parametrize("each", BALANCING_MUTANTS, ids=lambda each: each.mutant.what)
def test_a_planted_bug_of_balancing_is_found(each):
    with each.mutant.planted():
        assert exceeded(measures_of(each.scenario, size=MEDIUM)) != ""


def test_a_rolling_update_fails_no_row_and_each_client_reconnects_a_few_times():
    found = measures_of("rolling update")
    assert [phase.failed_rows for phase in found.phases] == [0, 0, 0]
    assert found.failed_tasks == 0
    assert 1 <= found.reconnects[0] <= found.reconnects[-1] <= SMALL.servers


@pytest.mark.slow
def test_new_servers_get_their_share_and_an_outage_of_all_ends_well():
    found = measures_of("scaled up, to none and back")
    few, first_minute, five_minutes, _, again = found.phases
    assert sum(phase.failed_rows for phase in found.phases) == 0
    assert five_minutes.streams_uneven < first_minute.streams_uneven
    assert five_minutes.waits[0] < few.waits[0] / 2
    assert again.streams_uneven < 2


def test_a_seed_of_a_fleet_gives_the_same_measures():
    first, again = measures_of("outage"), measures_of("outage")
    assert first == again
    assert first.phases[-1].messages > SMALL.clients
