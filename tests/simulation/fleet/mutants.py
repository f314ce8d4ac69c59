"""Planted bugs of balancing, each with the scenario whose bounds it must exceed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_client.base.server_load import ServerLoad
from spark_client.executor.stream.balancing import Balancer
from tests.simulation.fleet.measures import Measures
from tests.simulation.mutant import Mutant, returns
from udf_server.hosting.load import ReportedLoad

__all__ = ["BALANCING_MUTANTS", "BOUNDS", "BalancingMutant", "exceeded"]

MOST_LOAD, MOST_RECONNECTS, MOST_WAIT = 1.2, 4.0, 100.0


def exceeded(measures: Measures) -> str:
    """Which bound a scenario exceeds after its first phase; empty if it exceeds none."""
    for phase in measures.phases[1:]:
        if (most := BOUNDS[phase.scenario]) < phase.max_over_mean_load:
            return f"the busiest server has {phase.max_over_mean_load} times the mean load, more than {most}"
        if phase.waits[-1] > MOST_WAIT:
            return f"a message waited for {phase.waits[-1]} s, more than {MOST_WAIT} s"
    if measures.reconnects[1] > MOST_RECONNECTS:
        return f"1 % of the clients reconnected {measures.reconnects[1]} times, more than {MOST_RECONNECTS}"
    return ""


BOUNDS = {"nothing happens": MOST_LOAD, "uneven servers": MOST_LOAD, "late servers": MOST_LOAD, "slow server": 1.5}
"""The largest load of a server over the mean in a phase of a scenario. A slow server has few streams, so that
one more or less changes its load much."""


@dataclass(frozen=True)
class BalancingMutant:
    scenario: str
    mutant: Mutant


def _worse(original: Any) -> Any:
    return lambda self, other: original(other, self)


def _by_streams(original: Any) -> Any:
    def exceeds(self: ServerLoad, other: ServerLoad) -> bool:
        return original(ServerLoad(0.0, self.streams, self.cores), ServerLoad(0.0, other.streams, other.cores))

    return exceeds


def _whatever_cores(original: Any) -> Any:
    def exceeds(self: ServerLoad, other: ServerLoad) -> bool:
        return original(ServerLoad(self.load, self.streams, 1.0), ServerLoad(other.load, other.streams, 1.0))

    return exceeds


def _any_difference(original: Any) -> Any:
    return lambda self, other: self.load > other.load


def _only_at_first(original: Any) -> Any:
    def connected(self: Balancer, *arguments: Any, **keywords: Any) -> Any:
        better = original(self, *arguments, **keywords)
        self._due = float("inf")
        return better

    return connected


def _no_waiting(original: Any) -> Any:
    return lambda self, streams, crowded, waiting: original(self, streams, crowded, ())


def _never_busy(original: Any) -> Callable[..., float]:
    return lambda self, streams: 0.0


BALANCING_MUTANTS = (
    BalancingMutant("nothing happens", Mutant("no server is better", ServerLoad, "exceeds", returns(False))),
    BalancingMutant("nothing happens", Mutant("the worse of two is chosen", ServerLoad, "exceeds", _worse)),
    BalancingMutant("nothing happens", Mutant("any difference counts", ServerLoad, "exceeds", _any_difference)),
    BalancingMutant("uneven servers", Mutant("cores do not count", ServerLoad, "exceeds", _whatever_cores)),
    BalancingMutant("late servers", Mutant("servers are compared once", Balancer, "connected", _only_at_first)),
    BalancingMutant("slow server", Mutant("only streams count", ServerLoad, "exceeds", _by_streams)),
    BalancingMutant("slow server", Mutant("waiting does not count", ReportedLoad, "look", _no_waiting)),
    BalancingMutant("slow server", Mutant("a server tells that it is idle", ReportedLoad, "load", _never_busy)),
)
