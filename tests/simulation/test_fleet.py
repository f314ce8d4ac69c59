"""A small fleet: what its clients do when servers come and go, and that a seed gives the same measures."""

import pytest

from tests.simulation.fleet.measures import measured
from tests.simulation.fleet.scenarios import SCENARIOS, Size
from tests.simulation.world import worlds

SMALL = Size(clients=60, servers=5)


def measures_of(name, seed=1):
    [scenario] = [each for each in SCENARIOS if each.name == name]
    with worlds():
        return measured(scenario, SMALL, seed)


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
