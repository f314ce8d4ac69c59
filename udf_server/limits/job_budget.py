"""JobBudget is what this process has leased and spent of one budget: of a job, or of a caller for a day."""

import collections
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from udf_server.base.errors import BudgetSpent
from udf_server.base.fairness import ANYONE
from udf_server.limits.costs import RunningCall, Spender
from udf_server.limits.queue import Waiter
from udf_server.limits.rates import CALLS
from udf_server.limits.sharing.budget_ledger import BUDGET
from udf_server.limits.sharing.grants import budget_grant
from udf_server.limits.sharing.ledger import LEASE_SECONDS
from udf_server.limits.terms import Terms

__all__ = ["JobBudget"]

WaiterT = TypeVar("WaiterT", bound=Waiter)
AWAY_SECONDS = LEASE_SECONDS / 2
"""If no claim was answered for this time, the budget is not coordinated."""
BUSY_SECONDS, IDLE_SECONDS = 0.05, 1.5
"""Longest time between two claims while calls run or wait, and otherwise."""
ASK_SECONDS = (0.01, 0.1)
"""Time between two claims while calls wait for what the ledger does not have: it doubles."""
LOOK_SECONDS = 0.5
"""How often running calls are looked at that may never end."""
FORGOTTEN = 1e-6
"""If a process spends a smaller share of the budget, it asks for nothing ahead."""
ENOUGH = 1 - 1e-9
"""Sums of fractions are not exact."""


class JobBudget:
    """The budget of a job in one process, for its calls on any thread. A Coordinator sends its claims.

    A call takes what it is going to cost from what was leased, or waits for the next grant. The lock is held for short
    operations only.
    """

    def __init__(
        self, name: str, terms: Terms, *, whose: str = "this job", caller: str = "", title: str = "",
        fail_open: bool = False,
        clock: Callable[[], float] = time.monotonic, new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:  # fmt: skip
        """Create what `name` has spent in this process: nothing. `whose` budget it is, is for messages. `title` says
        for people which of its caller's budgets it is.

        If claims are not answered for some time, calls wait, or with `fail_open` this process takes the rest of the
        budget for its own.
        """
        self.name, self.terms, self.settings, self._whose = name, terms, str(terms), whose
        self.call_back: Callable[[], None] = lambda: None
        self.caller, self.title = caller, title
        self.kind, self.label = "budget", f"{caller}, {title}" if caller else title
        self.streams = 0
        """Number of open streams that use it. `Budgets` counts them."""
        self.idle_since = clock()
        self._fail_open, self._clock, self._member = fail_open, clock, new_id()
        self._lock = threading.Lock()
        self._units = [unit for unit, _ in terms.amounts]
        self._amounts = [amount for _, amount in terms.amounts]
        self._leased, self._reserved, self._spent, self._others, self._elsewhere = (
            [0.0] * len(self._units) for _ in range(5)
        )
        """By unit: what calls may take, what calls that run have taken, what was spent here, what other processes have
        spent, and what they hold."""
        self._recent = [0.0] * len(self._units)
        """What was taken since the last claim."""
        self._rows = self._failed = self._other_rows = self._other_failed = 0
        self._handed_over = False
        """Whether its day is over, so that calls do not wait for it."""
        self._over = ""
        """Why no call may begin any more; empty before that."""
        self._too_many_errors = False
        """Whether that is final: later rows may change a share, and nothing that was spent comes back."""
        self._spenders: dict[str, Spender] = {}
        self._running: set[RunningCall] = set()
        self._looked = clock()
        self._waiting: dict[Spender, collections.deque[tuple[Waiter, Mapping[str, float]]]] = {}
        self._claimed = [0.0] * len(self._units)
        """What was spent when the last claim was made."""
        self._claimed_rows = (0, 0)
        self._claimed_held, self._least = [0.0] * len(self._units), [0.0] * len(self._units)
        """What calls had taken then, and the least that a waiting call needed."""
        self._turn, self._known = 0, False
        """Number of claims, and whether a ledger has answered one."""
        self._sent, self._answered, self._denied = float("-inf"), clock(), ASK_SECONDS[0]
        self._why = ""

    def spender(self, function: str) -> Spender:
        """The spender for the calls of a function."""
        with self._lock:
            return self._spenders.setdefault(function, Spender(self._units))

    def take(
        self, spender: Spender, estimate: Mapping[str, float], make: Callable[[], WaiterT]
    ) -> "Sequence[float] | WaiterT":
        """Begin a call. Returns what it has taken, or a waiter that is woken. Raises BudgetSpent.

        Call `begun` for a waiter that was woken, `runs` for a call that began, and `ended` after it.
        """
        with self._lock:
            self._refuse_if_over()
            if not self._waiting.get(spender) and (costs := self._fits(spender, estimate)) is not None:
                self._look()
                return costs
            waiter = make()
            self._waiting.setdefault(spender, collections.deque()).append((waiter, estimate))
            if self._handed_over:
                self._wake_all()
        self.call_back()
        return waiter

    def hand_over(self, yes: bool) -> None:
        """Whether calls that wait take from another budget: that of the next day."""
        with self._lock:
            self._handed_over = yes
            if yes:
                self._wake_all()

    def begun(self, waiter: Waiter) -> Sequence[float] | None:
        """What a waiter has taken that was admitted; None if the budget, or that of the next day, is to be asked again.

        Raises BudgetSpent if it was refused.
        """
        if waiter.admitted:
            return waiter.costs
        with self._lock:
            waiter.leave()
            self._refuse_if_over()
        return None

    @property
    def unavailable(self) -> str:
        """Why calls wait although the budget may not be spent; empty if they do not."""
        if self._fail_open or not self._is_away:
            return ""
        return (
            f"the budget of {self._whose} is not coordinated: {self._why}; calls go on when it answers, or at once "
            "with the setting budgets_without_coordination = 'fail-open'"
        )

    def forget(self, spender: Spender, waiter: Waiter) -> None:
        """Remove a waiter that waits no more. It may have been admitted at the same moment."""
        with self._lock:
            waiter.leave()
            if not (admitted := waiter.admitted):
                self._drop(spender, waiter)
        if admitted:
            self.ended(RunningCall(spender, waiter.costs, ANYONE, 0.0), good=False, called=False)

    def runs(self, call: RunningCall) -> None:
        """Note that a call runs. If it does not end in time, what it has taken is spent, and nothing waits for it."""
        with self._lock:
            call.begins(self._clock())
            self._running.add(call)

    def ended(self, call: RunningCall, *, good: bool, called: bool = True) -> None:
        """Note that a call has ended, and whether it has a result. It may have been written off.

        `called` is False if it was not made, after all.
        """
        with self._lock:
            if not called and CALLS in self._units:
                index = self._units.index(CALLS)
                self._spent[index] -= call.costs[index]
            self._running.discard(call)
            if call.lost is None:
                self._give_back(call)
            else:
                self._spent = [spent - lost for spent, lost in zip(self._spent, call.lost, strict=True)]
            if not called or call.lost is not None:
                self._look_again()
            call.spender.ended(call.spending.amounts, good=good)
            if self._waiting:
                self._admit()

    def spent(self, amounts: Mapping[str, float]) -> None:
        """Count what a call has spent, as it reports it."""
        with self._lock:
            for index, unit in enumerate(self._units):
                if unit != CALLS:
                    self._spent[index] += amounts.get(unit, 0.0)
            self._look()

    @property
    def is_idle(self) -> bool:
        """Whether no stream uses it and no call runs that may still spend."""
        return not self.streams and not self._running

    def amounts(self) -> list[tuple[str, float, float]]:
        """By unit, what all processes have spent, as far as this one knows, and the budget."""
        with self._lock:
            spent = [mine + others for mine, others in zip(self._spent, self._others, strict=True)]
        return list(zip(self._units, spent, self._amounts, strict=True))

    def used(self) -> list[tuple[str, float]]:
        """By unit, the part of the budget that all processes have spent, as far as this one knows."""
        return [(unit, spent / most) for unit, spent, most in self.amounts()]

    def answered(self, rows: int, failed: int) -> None:
        """Count rows that have an outcome. Those that failed because the budget is spent are not counted."""
        with self._lock:
            self._rows += rows
            self._failed += failed
            if failed:
                self._look()

    # What a coordinator calls.

    def due(self) -> float:
        """Seconds until the next claim."""
        with self._lock:
            now = self._clock()
            if self._waiting:
                wait = self._denied
                self._denied = min(self._denied * 2, ASK_SECONDS[1])
                return wait
            self._denied = ASK_SECONDS[0]
            busy = any(spender.running for spender in self._spenders.values()) or any(self._leased)
            busy = busy or self._spent != self._claimed or (self._rows, self._failed) != self._claimed_rows
            return self._sent + (BUSY_SECONDS if busy else IDLE_SECONDS) - now

    def claim(self, *, leave: bool = False) -> dict[str, Any]:
        """The claim for what the calls of this process need."""
        with self._lock:
            now = self._clock()
            if now >= self._looked + LOOK_SECONDS:
                self._write_off(now)
            elapsed = max(now - self._sent, ASK_SECONDS[0])
            wanted, least = self._wanted()
            units, waits = {}, any(wanted)
            for index, unit in enumerate(self._units):
                ahead = 0.0 if leave else self._recent[index] / elapsed * 2 * BUSY_SECONDS
                # What calls wait for and does not fit may be what others wait for, so nothing is kept meanwhile.
                kept = 0.0 if waits or leave else min(self._leased[index], ahead)
                self._leased[index] = kept
                units[unit] = {
                    "amount": self._amounts[index], "spent": self._spent[index], "held": self._reserved[index] + kept,
                    "take": 0.0 if leave else wanted[index], "least": least[index], "ahead": max(ahead - kept, 0.0),
                }  # fmt: skip
                recent = self._recent[index] / 2
                self._recent[index] = recent if recent > self._amounts[index] * FORGOTTEN else 0.0
            self._turn += 1
            self._claimed_held, self._least = list(self._reserved), least
            self._sent, self._claimed, self._claimed_rows = now, list(self._spent), (self._rows, self._failed)
            return {
                "kind": BUDGET, "settings": self.settings, "member": self._member, "turn": self._turn,
                "known": self._known, "units": units,
                "rows": self._rows, "failed": self._failed,
            }  # fmt: skip

    def granted(self, grant: dict[str, Any]) -> None:
        """Take the grant for the last claim. Raises CoordinationFailed if it is none."""
        if "stale" in grant:
            return
        taken = budget_grant(grant, self._units)
        with self._lock:
            self._answered, self._why, self._known = self._sent, "", True
            more, room, known = False, [0.0] * len(self._units), self._others
            self._others = [0.0] * len(self._units)
            for index in range(len(self._units)):
                leased, spent, self._elsewhere[index], room[index] = taken.units[index]
                self._leased[index] += leased
                more = more or leased > 0
                self._others[index] = max(spent - self._claimed[index], 0.0)
            rows, failed = self._claimed_rows
            self._other_rows, self._other_failed = taken.rows - rows, taken.failed - failed
            if more:
                self._denied = ASK_SECONDS[0]
            if any(now < before for now, before in zip(self._others, known, strict=True)):
                self._look_again()
            self._look()
            self._look_for_room(room)
            self._admit()

    def failed(self, why: str) -> None:
        """Note that the last claim was not answered, or was refused."""
        with self._lock:
            self._why = why
            if self._is_away:
                self._admit()

    # The methods below are called with the lock held.

    @property
    def _is_away(self) -> bool:
        return bool(self._why) and self._clock() - self._answered > AWAY_SECONDS

    def _refuse_if_over(self) -> None:
        if self._over:
            raise BudgetSpent(self._over)

    def _look(self) -> None:
        """Note if the budget is spent."""
        if self._over:
            return
        for index, unit in enumerate(self._units):
            spent = self._spent[index] + self._others[index]
            if spent >= self._amounts[index] * ENOUGH:
                self._over = f"the budget of {self._whose} is spent: {spent:,.6g} of {self._amounts[index]:,.6g} {unit}"
        rows, failed = self._rows + self._other_rows, self._failed + self._other_failed
        if allowed := self.terms.errors.exceeded(failed, rows):
            self._too_many_errors = True
            self._over = f"{failed:,} of {rows:,} rows of {self._whose} have failed; its budget allows {allowed}"
        if self._over:
            self._wake_all()

    def _look_again(self) -> None:
        """Let calls begin again if the budget is not spent any more: a call was not made, or ended late."""
        if not self._too_many_errors:
            self._over = ""
            self._look()

    def _fits(self, spender: Spender, estimate: Mapping[str, float]) -> "Sequence[float] | None":
        """Take what a call is going to cost. Returns None if it has to wait."""
        costs = spender.costs(estimate)
        if costs is None:
            return None
        away = self._is_away
        alone = away and self._fail_open
        if not alone and (away or not self._known):
            return None  # other processes may have spent the budget
        for index, cost in enumerate(costs):
            there = self._leased[index]
            if alone:
                used = self._spent[index] + self._others[index] + self._reserved[index]
                there = self._amounts[index] - used
            if cost > 0 and there < cost * ENOUGH:
                return None
        for index, cost in enumerate(costs):
            self._recent[index] += cost
            self._leased[index] = max(self._leased[index] - cost, 0.0)
            if self._units[index] == CALLS:
                self._spent[index] += cost
            else:
                self._reserved[index] += cost
        spender.running += 1
        return costs

    def _give_back(self, call: RunningCall) -> None:
        """Hold nothing for a call any more."""
        call.spender.running -= 1
        for index, unit in enumerate(self._units):
            if unit != CALLS:
                self._reserved[index] = max(self._reserved[index] - call.costs[index], 0.0)

    def _write_off(self, now: float) -> None:
        """Count what calls have taken as spent that may never end, so that others do not wait for them."""
        self._looked = now
        for call in [call for call in self._running if call.is_written_off(now)]:
            self._running.discard(call)
            self._give_back(call)
            call.lost = [
                0.0 if unit == CALLS else max(cost - call.spending.amounts.get(unit, 0.0), 0.0)
                for unit, cost in zip(self._units, call.costs, strict=True)
            ]
            self._spent = [spent + lost for spent, lost in zip(self._spent, call.lost, strict=True)]
        self._look()
        self._admit()

    def _admit(self) -> None:
        """Let waiting calls begin."""
        for spender, waiting in list(self._waiting.items()):
            while waiting and not self._over:
                waiter, estimate = waiting[0]
                if not waiter.gone:
                    costs = self._fits(spender, estimate)
                    if costs is None:
                        break
                    waiter.costs = costs
                    waiter.admit(self._clock())
                waiting.popleft()
                self._look()  # it may refuse all others
            if not waiting:
                self._waiting.pop(spender, None)

    def _drop(self, spender: Spender, waiter: Waiter) -> None:
        """Ask for nothing any more for a call that has left."""
        waiting = self._waiting.get(spender, ())
        place = next((place for place, (each, _) in enumerate(waiting) if each is waiter), None)
        if place is not None:
            del self._waiting[spender][place]
            if not self._waiting[spender]:
                del self._waiting[spender]

    def _wanted(self) -> tuple[list[float], list[float]]:
        """What waiting calls need of each unit, and what the first one needs of a function, in turn of each."""
        wanted, least = [0.0] * len(self._units), [0.0] * len(self._units)
        chosen = list(self._waiting)[self._turn % len(self._waiting)] if self._waiting else None
        for spender, waiting in self._waiting.items():
            first = next((estimate for waiter, estimate in waiting if not waiter.gone), None)
            costs = None if first is None else spender.costs(first)
            if costs is None:
                continue
            wanted = [total + cost * len(waiting) for total, cost in zip(wanted, costs, strict=True)]
            if spender is chosen:
                least = list(costs)
        return wanted, least

    def _look_for_room(self, room: Sequence[float]) -> None:
        """Note if the budget is spent because a call does not fit, and nothing can come back: no process holds any.

        What processes held that have crashed is spent.
        """
        for index, unit in enumerate(self._units):
            cost, amount = self._least[index], self._amounts[index]
            held = self._claimed_held[index] + self._elsewhere[index]
            if cost > 0 and room[index] < cost * ENOUGH and held <= amount * (1 - ENOUGH) and not self._over:
                spent = self._spent[index] + self._others[index]
                self._over = (
                    f"the budget of {self._whose} is spent: {spent:,.6g} of {amount:,.6g} {unit}, and a call costs "
                    f"{cost:,.6g}"
                )
                self._wake_all()

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for waiter, _ in queue:
                if not waiter.gone:
                    waiter.wake()
            queue.clear()
