"""A simulated Redis with the ledgers of guards that servers share, and what looks at the calls of all of them."""

import asyncio
import json
import pickle
from collections import defaultdict, deque
from random import Random
from typing import Any

from tests.simulation.circuit import Circuit
from tests.simulation.oracles import Violation
from tests.simulation.pace import Pace
from tests.simulation.shares import Shares
from tests.simulation.spending import Spending
from udf_server.limits.budgets import Budgets
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import CALLS, GuardSettings
from udf_server.limits.sharing.claims import CoordinationFailed, LedgerAnswer, LimitClaim, RateClaim
from udf_server.limits.sharing.ledger import LEASE_SECONDS, Ledger
from udf_server.limits.sharing.ledgers import ANSWER_SECONDS, Ledgers

__all__ = ["SharedGuarded", "SimulatedRedis"]

LATE_SECONDS = 1.5
"""Longest delay of a claim, and of its answer, while the Redis is late. Some have no answer in time."""
LEASED_AHEAD_SECONDS = 0.5
"""Tokens from before the Redis lost its data are spent within this time."""
SOON_SECONDS = 1.0
"""A call that has a place begins within this time, unless another one has got one meanwhile."""
AGAIN = 0.05
"""Share of the claims that arrive once more while the Redis is late."""
COPIES = 500
"""Number of claims after which a replica has a copy of the ledger."""


class SimulatedRedis:
    """Answers the claims of all servers of a world. It may be away or late, lose data, or go back to a copy."""

    def __init__(self, settings: GuardSettings, process: Any, random: Random, spending: Spending) -> None:
        """It lives in a process that never ends. `spending` looks at the tokens of all calls."""
        self.clock, self._process, self._random = process.scheduler.clock, process, random
        self._again = process.scheduler.random("redis again")
        self.spending = spending
        self.away, self.late = False, False
        self.ledger = Ledger(may_be_lost=True)
        self.budgets: dict[str, Ledger] = {}
        self.guardeds: list[SharedGuarded] = []
        self._settled: defaultdict[str, float] = defaultdict(float)
        """By member, what it has settled."""
        self._most = settings.max_concurrency
        self._rates = [rate for rate in settings.rate if rate.unit == CALLS]
        self._begun = [deque[float](maxlen=int(rate.amount)) for rate in self._rates]
        self._pace = Pace(self._rates)
        self._lost_at = float("-inf")
        self._run, self._started = 0, float("-inf")
        self._copies: deque[tuple[float, bytes]] = deque(maxlen=COPIES)
        """The states of the ledgers after their latest claims, and when these were."""

    def lose_data(self) -> None:
        self.ledger, self._lost_at = Ledger(may_be_lost=True), self.clock()
        self.budgets = {}
        self.spending.lost(self._lost_at)
        self._run, self._started = self._run + 1, self._lost_at
        self._copies.clear()

    def fail_over(self, lag: float) -> None:
        """Another Redis takes over, which lacks the claims of the last `lag` seconds."""
        older = [state for at, state in self._copies if at <= self.clock() - lag]
        self.lose_data()
        self._started = float("-inf")
        if older:
            self.ledger, self.budgets = pickle.loads(older[-1])

    def fails(self, what: str, seconds: float) -> None:
        """It is `away` or `late` for some time."""
        setattr(self, what, True)
        self.spending.unwell(what, self.clock(), self.clock() + seconds)
        self._process.after(seconds, setattr, self, what, False)

    def exchange(self, name: str, claim: LimitClaim) -> LedgerAnswer:
        """The grant for a claim."""
        now, run = self.clock(), str(self._run)
        if claim["lasts"]:
            ledger = self.budgets.setdefault(name, Ledger(may_be_lost=True))
            grant = ledger.exchange(claim, now, run, now - self._started)
        else:
            self._count(claim, now, run)
            grant = self.ledger.exchange(claim, now, run)
        self._copies.append((now, pickle.dumps((self.ledger, self.budgets))))
        return grant

    def _count(self, claim: LimitClaim, now: float, run: str) -> None:
        """Count what the ledger adds to a rate for this claim beyond what it grants. Raises Violation."""
        for index, rate in enumerate(claim["rates"]):
            if not rate["settled"] or index < len(self._rates):
                continue
            used = [0.0, 0.0]
            for place, settled in enumerate((rate["settled"], [])):
                copy = pickle.loads(pickle.dumps(self.ledger))
                tried: RateClaim = {**claim["rates"][index], "settled": settled}
                answer = copy.exchange(
                    {**claim, "rates": [*claim["rates"][:index], tried, *claim["rates"][index + 1 :]]}, now, run
                )
                if "rates" not in answer:
                    return
                used[place] = copy.windows[index].used(now) - sum(answer["rates"][index])
            member = claim["member"]
            self._settled[member] += used[0] - used[1]
            most = self.spending.excess(member.split(" ")[0])
            if self._settled[member] > most * 1.001 + 1e-6:
                raise Violation(
                    f"{member}: {self._settled[member]:g} tokens were settled, but calls spent {most:g} more"
                )

    async def travel(self) -> None:
        """What a claim or its answer takes. Raises OSError if the Redis is away."""
        await asyncio.sleep(self._random.uniform(0, LATE_SECONDS if self.late else 0.005))
        if self.away:
            await asyncio.sleep(self._random.choice((0.0, 2 * ANSWER_SECONDS)))
            raise OSError("the Redis is away")

    def arrive_again(self, name: str, claim: LimitClaim) -> None:
        """If it is late, a claim may arrive once more: a connection that was lost is still read, or a proxy repeats it.

        Claims that arrive so are in any order.
        """
        if self.late and self._again.random() < AGAIN:
            self._process.after(self._again.uniform(0, LATE_SECONDS), self.exchange, name, claim)

    def look(self) -> None:
        """Calls of a server without an answer for a lease are no longer covered by it."""
        for each in self.guardeds:
            each.look_at_lease(self.clock())

    def began(self, now: float, where: str, *, counted: bool) -> None:
        """A call begins on some server. Raises Violation if the guard should not have allowed it."""
        self.look()
        running = sum(each.counted for each in self.guardeds)
        if self._most is not None and running > self._most:
            raise Violation(f"{where}: {running} calls at once on all servers; max-concurrency is {self._most}")
        if not counted or now < self._lost_at + LEASED_AHEAD_SECONDS:
            return
        for rate, begun in zip(self._rates, self._begun, strict=True):
            if len(begun) == begun.maxlen and begun[0] > self._lost_at and now < begun[0] + rate.seconds:
                raise Violation(f"{where}: {len(begun) + 1} calls on all servers in {now - begun[0]:g} s; rate {rate}")
            begun.append(now)
        self._pace.began(now, where, late=self.spending.was_unwell or self._lost_at > float("-inf"))

    def check_left(self) -> None:
        """Long after the last call nothing is leased and no rate is in use. Raises Violation."""
        now = self.clock()
        held = {name: kept["places"] for name, kept in self.ledger.members.items() if kept["until"] > now}
        used = {index: used for index, window in self.ledger.windows.items() if (used := window.used(now))}
        if any(held.values()) or used:
            raise Violation(f"the ledger has places {held} and units {used} at the end")
        for budget in self.budgets.values():
            self._check_budget_left(budget)

    def _check_budget_left(self, budget: Ledger) -> None:
        """What was spent is counted once. A server that ends before its calls leaves what they were to spend."""
        members = budget.members.values()
        spent = sum(spent for member in members for spent, _ in member["units"].values())
        if spent > self.spending.spent + self.spending.written_off + 1e-6:
            raise Violation(f"the budget's ledger has {spent:g} tokens; calls have spent {self.spending.spent:g}")


class ServerLedgers(Ledgers):
    """The connection of one server to the Redis."""

    def __init__(self, redis: SimulatedRedis) -> None:
        self._redis = redis

    async def exchange(self, name: str, claim: LimitClaim) -> LedgerAnswer:
        redis = self._redis
        redis.look()
        sent = json.loads(json.dumps(claim))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                redis.arrive_again(name, sent)
                await redis.travel()
                grant = redis.exchange(name, sent)
                await redis.travel()
        except OSError as error:
            raise CoordinationFailed(f"Redis does not answer: {type(error).__name__}") from None
        answer: LedgerAnswer = json.loads(json.dumps(grant))
        return answer

    async def close(self) -> None:
        pass


class SharedGuarded:
    """The calls of one process whose guard is shared."""

    def __init__(self, redis: SimulatedRedis, settings: GuardSettings, guard: Limiter, process: Any) -> None:
        self.guard, self.ledgers = guard, ServerLedgers(redis)
        self._redis, self._process = redis, process
        self._places = settings.max_concurrency
        self._loop: Any = None
        self._calls: dict[Any, bool] = {}
        """The calls that run, and whether the guard must count them."""
        self._where = f"{process.name}, the shared guard of slow"
        self._circuit = Circuit(settings, self._where)
        self.shares = Shares()
        self.budgets: Budgets | None = None
        """Those of the process."""
        self._running = 0
        """Number of calls on the loop: a row may have two (`hedge-after`)."""
        self._coming_since: float | None = None
        """Since when calls hold places that have not begun."""
        redis.guardeds.append(self)

    @property
    def away(self) -> bool:
        """Whether the guard is not coordinated."""
        return self.guard.sharing is not None and self.guard.sharing.away

    @property
    def counted(self) -> int:
        return sum(self._calls.values()) if self._process.alive else 0

    def began(self, x: int, now: float, loop: Any, party: Any) -> None:
        """A call begins. Raises Violation if the guard should not have allowed it."""
        if loop is not self._loop:
            self._loop = loop
            self._calls.clear()
            self._running = 0
        self._running += 1
        self.shares.began(x, now, loop, party)
        # `fail-open` allows calls without a ledger. A process that was frozen, or is slow, begins calls late.
        counted = not (self.away or self._process.was_frozen)
        self._calls[x, party] = counted
        self._redis.began(now, self._where, counted=counted and self._process.slow == 1.0)
        self._circuit.began(now)

    def ended(self, x: int, now: float, loop: Any, party: Any, went_well: bool | None) -> None:
        """A call has ended."""
        if loop is self._loop:
            self._running -= 1
            self._calls.pop((x, party), None)
            self._circuit.ended(now, went_well)

    def look(self) -> None:
        """After an iteration of the loop. Raises Violation."""
        coming = 0 if self._places else max(self.guard.in_use - len(self._calls), 0)
        self._circuit.look(self.guard.learned.closed)
        self.shares.look(self.guard.waiting.queue, 2 * (self._places or 1) + 4, self._where, coming)
        if self._process.was_frozen or self._process.slow != 1.0:
            return
        now, coming = self._redis.clock(), self.guard.in_use - self._running
        self._coming_since = None if coming <= 0 else now if self._coming_since is None else self._coming_since
        if self._coming_since is not None and now > self._coming_since + SOON_SECONDS:
            raise Violation(f"{self._where}: {coming} calls that have not begun hold places")
        for budget in self.budgets.kept() if self.budgets is not None else ():
            spender = budget.spender(self.guard.key)
            if (holding := sum(call.spender is spender for call in budget.running)) > self.guard.in_use:
                raise Violation(f"{self._where}: {holding} calls hold a part of a budget; {self.guard.in_use} run")

    def look_at_lease(self, now: float) -> None:
        """If the lease is over, the others may use what its calls use."""
        sharing = self.guard.sharing
        if self._process.frozen or sharing is None or now > sharing._answered + LEASE_SECONDS:
            self._calls = dict.fromkeys(self._calls, False)

    def check_left(self) -> None:
        """After the last call. Raises Violation."""
        guard = self.guard
        waiting = len(guard.waiting)
        if guard.in_use or waiting:
            name = self._process.name
            raise Violation(f"{name}: {guard.in_use} places are taken and {waiting} calls wait at the end")
