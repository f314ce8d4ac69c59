"""What a scenario did to a fleet, phase by phase: load, waiting and reconnects."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.simulation.fleet.clients import Message
from tests.simulation.fleet.fleet import Fleet, Look
from tests.simulation.fleet.scenarios import FleetScenario, Size

__all__ = ["Measures", "PhaseMeasures", "measured"]


@dataclass(frozen=True)
class PhaseMeasures:
    """The measures of one phase."""

    scenario: str
    phase: str
    messages: int
    failed_rows: int
    streams_uneven: float
    """The mean over time of the largest number of streams of a server, over the mean of all servers."""
    max_over_mean_load: float
    """The busy share of the cores in the whole phase: that of the busiest server over the mean of all servers that were
    there all the time; 0.0 if there is none."""
    waits: tuple[float, ...]
    """Seconds until the last outcome of a message that was sent in this phase: 50 %, 90 %, 99 %, all."""
    opened: int
    """Streams that clients asked for."""
    most_opened: int
    """The same in the busiest two seconds."""


@dataclass(frozen=True)
class Measures:
    """The measures of a scenario, and what its charts show."""

    phases: list[PhaseMeasures]
    reconnects: tuple[float, ...]
    """Of a client, in the whole scenario: 50 %, 99 %, all."""
    failed_tasks: int
    looks: list[Look]
    messages: list[tuple[float, float]]
    """When each message was sent, and its seconds."""


def measured(scenario: FleetScenario, size: Size, seed: int) -> Measures:
    """Run a scenario. The same seed gives the same measures."""
    fleet = Fleet(seed, size.clients, scenario.seconds, scenario.frequent)
    try:
        scenario.plan(fleet, size)
        fleet.run()
        messages = sorted(
            (message for client in fleet.clients for message in client.messages), key=lambda message: message.at
        )
        phases, begin = [], 0.0
        for phase in scenario.phases:
            end = begin + phase.seconds
            sent = [message for message in messages if begin <= message.at < end]
            looks = [look for look in fleet.looks if begin < look.at <= end]
            phases.append(_phase(scenario.name, phase.name, sent, looks))
            begin = end
        return Measures(
            phases, _percentiles([client.reconnects for client in fleet.clients], (50, 99, 100)),
            sum(client.failed_tasks for client in fleet.clients), fleet.looks,
            [(message.at, message.seconds) for message in messages],
        )  # fmt: skip
    finally:
        fleet.close()


def _phase(scenario: str, phase: str, sent: Sequence[Message], looks: Sequence[Look]) -> PhaseMeasures:
    there = [look for look in looks if look.streams]
    uneven = [max(look.streams) / np.mean(look.streams) for look in there if any(look.streams)]
    # The servers are the same in all looks if their number is.
    same = there and len({len(look.busy) for look in looks}) == 1
    busy = np.sum([look.busy for look in there], axis=0) if same else np.zeros(1)
    return PhaseMeasures(
        scenario, phase, len(sent), sum(message.failed for message in sent),
        round(float(np.mean(uneven)), 2) if uneven else 0.0,
        round(float(busy.max() / busy.mean()), 2) if busy.any() else 0.0,
        _percentiles([message.seconds for message in sent], (50, 90, 99, 100)),
        sum(look.opened for look in looks), max((look.opened for look in looks), default=0),
    )  # fmt: skip


def _percentiles(values: Sequence[float], wanted: Sequence[int]) -> tuple[float, ...]:
    return tuple(round(float(value), 2) for value in np.percentile(values or [0.0], wanted))
