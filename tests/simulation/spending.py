"""Spending looks at the tokens of calls: those of a shared rate, those of a rate of one process, and the job's budget.

A call is expected to take tokens. It reports what it has spent while it runs: less, more, much more, or nothing before
it is cut off. What it has spent beyond its estimate could not be known before. But once it is known, it counts, and a
call that begins then must find room for it.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.functions import TOKENS
from tests.simulation.oracles import Violation
from udf_server.limits.settings import GuardSettings, RateLimit

__all__ = ["Spending", "SpendingObserver"]

TOLERANCE = 1.01
SOON_SECONDS = 1.0
"""All processes know within this time what a call has spent."""
OWN_SECONDS = 0.05
"""A call that was allowed begins within this time, and its process may have learnt meanwhile what others have spent."""
LATE_SECONDS = 7.0
"""The same if the Redis is late: a claim and the one before it, then tokens that others had before."""
FORGOTTEN_SECONDS = 0.5
"""Tokens from before the Redis lost its data are spent within this time."""


@dataclass(eq=False)
class _Call:
    """A call that takes tokens."""

    process: Any
    began: float
    estimate: float
    counted: bool
    """Whether the limits hold for it."""
    taken: float | None
    """When it has taken what it is expected to spend of the budget; None if it has none."""
    reports: list[tuple[float, float]] = field(default_factory=list)
    """When it has reported what."""
    ended: float | None = None

    @property
    def spent(self) -> float:
        return sum(amount for _, amount in self.reports)

    def settled(self, by: float) -> bool:
        """Whether its process has settled it by this time."""
        return bool(self.reports) and self.ended is not None and self.ended <= by


class Spending:
    """The calls of all servers of one world."""

    def __init__(self, settings: GuardSettings | None, budget: float | None, *, shared: bool) -> None:
        self._rates = [rate for rate in settings.rate if rate.unit == TOKENS] if settings else []
        self._budget, self._shared = budget, shared
        self._calls: list[_Call] = []
        self._running: dict[Any, _Call] = {}
        self._lost_at = float("-inf")
        self._unwell: list[tuple[float, float, str]] = []
        """When the Redis was away or late: from, until, what."""

    @property
    def spent(self) -> float:
        """What all calls have spent."""
        return sum(call.spent for call in self._calls)

    @property
    def written_off(self) -> float:
        """What is held for calls that have not ended."""
        return sum(call.estimate for call in self._calls if call.ended is None)

    def excess(self, process: str) -> float:
        """What a process may have to settle at most. What calls take that begin late is settled, too."""
        mine = [call for call in self._calls if call.process.name == process]
        return sum(max(call.spent - call.estimate, 0.0) + call.estimate for call in mine)

    def unwell(self, what: str, since: float, until: float) -> None:
        """Note that the Redis is away or late."""
        self._unwell.append((since, until, what))

    @property
    def was_unwell(self) -> bool:
        """Whether the Redis has been away or late."""
        return bool(self._unwell)

    def lost(self, now: float) -> None:
        """Note that the Redis has lost data."""
        self._lost_at = now

    def began(self, key: Any, now: float, process: Any, estimate: float, taken: float | None, *, counted: bool) -> None:
        """A call begins, which is expected to spend some tokens, and has taken them of the budget at a time.

        Raises Violation.
        """
        call = self._running[key] = _Call(process, now, estimate, counted, taken)
        self._calls.append(call)
        if not counted or now < self._lost_at + FORGOTTEN_SECONDS:
            call.counted = False
            return
        if estimate:  # otherwise it needs no room
            for rate in self._rates:
                self._check_rate(rate, now, process)
            if taken is not None:
                self._check_budget(taken, process)

    def reported(self, key: Any, now: float, amount: float) -> None:
        """A call reports tokens."""
        self._running[key].reports.append((now, amount))

    def ended(self, key: Any, now: float) -> None:
        """A call has ended."""
        self._running.pop(key).ended = now

    def _check_rate(self, rate: RateLimit, now: float, process: Any) -> None:
        since = now - rate.seconds
        found, unknown = 0.0, 0.0
        for call in self._counted(process):
            settled = call.settled(now)
            if call.began > since:
                found += min(call.estimate, call.spent) if settled else call.estimate
            if settled and call.ended is not None and call.ended > since:
                excess = max(call.spent - call.estimate, 0.0)
                if self._is_known(call, call.ended, now, process):
                    found += excess
                else:
                    unknown += excess
        if found > rate.amount * TOLERANCE + 1e-6:
            raise Violation(
                f"{process.name}: calls take {found:g} tokens in {rate.seconds} s, and perhaps {unknown:g} more that "
                f"were not known; rate {rate}"
            )

    def _counted(self, process: Any) -> Iterable[_Call]:
        return (
            call for call in self._calls
            if call.counted and call.began > self._lost_at and (self._shared or call.process is process)
        )  # fmt: skip

    def _is_known(self, call: _Call, at: float, now: float, process: Any) -> bool:
        """Whether the process that asks must know what a call spent at a time."""
        if call.process is process:
            return at <= now - OWN_SECONDS
        late = any(since <= now and until >= at - LATE_SECONDS for since, until, _ in self._unwell)
        away = any(what == "away" for since, until, what in self._unwell if since <= now and until >= at - LATE_SECONDS)
        if away or not call.process.alive or call.process.was_frozen or call.process.slow != 1.0:
            return False
        return at <= now - (LATE_SECONDS if late else SOON_SECONDS)

    def _check_budget(self, now: float, process: Any) -> None:
        """What was spent and what is held for calls fits the budget."""
        budget = self._budget
        assert budget is not None
        found = unknown = 0.0
        for call in self._calls:
            if call.taken is None or call.taken > now:
                continue
            if self._lost_at > call.began and (not call.process.alive or not call.counted):
                continue  # forgotten
            spent = call.spent
            expected = max(call.estimate, spent) if call.ended is None else spent
            known = spent - sum(amount for at, amount in call.reports if not self._is_known(call, at, now, process))
            found += min(expected, max(known, call.estimate if call.ended is None else 0.0))
            unknown += expected - known
        if found > budget * TOLERANCE + 1e-6:
            raise Violation(
                f"{process.name}: calls take {found:g} tokens, and perhaps {unknown:g} more; budget {budget:g}"
            )


class SpendingObserver:
    """The calls in one process of a server."""

    def __init__(
        self, spending: Spending, process: Any, estimate: Callable[[int], float], alone: Callable[[], bool],
        taken: Callable[[], float | None],
    ) -> None:  # fmt: skip
        """`estimate` returns the tokens that a call with a row is expected to spend.

        `alone` is whether its limits are not coordinated. `taken` is when the current call took its tokens of the
        budget.
        """
        self._spending, self._process, self._estimate = spending, process, estimate
        self._alone, self._taken = alone, taken

    def began(self, x: int, now: float, loop: Any, party: Any) -> None:
        """A call begins. Raises Violation."""
        process, key = self._process, asyncio.current_task(loop)
        counted = not (self._alone() or process.was_frozen) and process.slow == 1.0
        self._spending.began(key, now, process, self._estimate(x), self._taken(), counted=counted)

    def spent(self, now: float, loop: Any, amount: float) -> None:
        """A call reports tokens."""
        self._spending.reported(asyncio.current_task(loop), now, amount)

    def ended(self, x: int, now: float, loop: Any, party: Any, went_well: bool | None) -> None:
        """A call has ended."""
        self._spending.ended(asyncio.current_task(loop), now)
