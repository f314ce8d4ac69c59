"""Coordinator sends the claims of this process's accounts, and gives them their grants."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence

from udf_server.base.errors import InvalidConfig
from udf_server.base.threads import poster
from udf_server.limits.sharing.account import Account
from udf_server.limits.sharing.claims import CoordinationFailed, LimitClaim
from udf_server.limits.sharing.ledger import LEASE_SECONDS
from udf_server.limits.sharing.ledgers import Ledgers

__all__ = ["Coordinator"]

log = logging.getLogger(__name__)

SHORTEST_SECONDS = 0.005
"""Shortest time between two claims of one limit."""
CONFLICT_SECONDS = LEASE_SECONDS + 1.0
"""How long a start waits for servers with other settings to leave: one that crashed leaves when its lease ends."""


class Coordinator:
    """Keeps one task per shared limit between `open` and `close`."""

    def __init__(
        self,
        ledgers: Ledgers,
        accounts: Sequence[Account],
        *,
        observe: Callable[[float, bool], None] = lambda seconds, good: None,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """`observe` is called after each claim, with its seconds and whether it has got a grant.

        `new_id` returns a text that no member has had.
        """
        self._ledgers, self._accounts = ledgers, tuple(accounts)
        self._observe, self._clock = observe, clock
        self._new_id = new_id
        self._member = new_id()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By limit, for those whose ledger was joined, or did not answer."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._away: set[str] = set()
        self._closed = False

    async def open(self) -> None:
        """Join the ledgers. Raises InvalidConfig if other servers have other settings for a limit.

        If they do not answer, the limits are told, and asked again at intervals.
        """
        try:
            until = self._clock() + CONFLICT_SECONDS
            conflicts = await asyncio.gather(*(self._join(each, until) for each in self._accounts))
        except BaseException:
            await self.close()
            raise
        if found := [each for each in zip(self._accounts, conflicts, strict=True) if each[1] is not None]:
            await self.close()
            account, conflict = found[0]
            raise InvalidConfig(
                f"setting guards, {account.name}: this server has {account.settings}; other servers that run have "
                f"{conflict}. Stop them first, or give this server another coordination_namespace"
            )

    async def _join(self, account: Account, until: float) -> str | None:
        """Join a ledger, and send claims from then on. Returns the settings of other servers if they differ."""
        while (conflict := await self._exchange(account)) is not None:
            if self._clock() > until:
                return conflict
            await asyncio.sleep(0.5)
        self._tasks[account.name] = asyncio.create_task(self._run(account))
        return None

    def add(self, account: Account) -> None:
        """Share one more limit, whose claims are sent from now on."""
        self._accounts = (*self._accounts, account)
        self._tasks[account.name] = asyncio.create_task(self._run(account))

    def remove(self, account: Account) -> asyncio.Task[None]:
        """Send no more claims for a limit that was added. The task, which need not be kept, returns what was leased."""
        self._accounts = tuple(each for each in self._accounts if each is not account)
        self._away.discard(account.name)
        leaving = asyncio.create_task(self._leave(account, self._tasks.pop(account.name, None)))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return leaving

    async def _leave(self, account: Account, task: "asyncio.Task[None] | None") -> None:
        if task is not None and not self._closed:
            task.cancel()
            await asyncio.wait((task,))
            await self._exchange(account, leave=True)

    async def close(self) -> None:
        """Return what was leased, and close the connections. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
            joined = [each for each in self._accounts if each.name in self._tasks]
            await asyncio.gather(*(self._exchange(each, leave=True) for each in joined))
        await self._ledgers.close()

    async def _run(self, account: Account) -> None:
        post, wake, asked = poster(asyncio.get_running_loop()), asyncio.Event(), False

        def woken() -> None:
            nonlocal asked
            asked = False
            wake.set()

        def call_back() -> None:
            nonlocal asked
            if not asked:
                asked = True
                post(woken)

        account.call_back = call_back
        while True:
            sent = self._clock()
            await self._exchange(account)
            wake.clear()
            try:
                async with asyncio.timeout(max(account.due(), 0.0)):
                    await wake.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(max(sent + SHORTEST_SECONDS - self._clock(), 0.0))

    async def _exchange(self, account: Account, *, leave: bool = False) -> str | None:
        """Send one claim. Returns the settings of other servers if they differ."""
        began = self._clock()
        claim: LimitClaim = {"member": self._member, **account.claim(leave=leave), "fresh": self._new_id()}
        try:
            grant = await self._ledgers.exchange(account.name, claim)
            _end_if_cancelled()
            if "conflict" not in grant:
                account.granted(grant)
        except CoordinationFailed as error:
            _end_if_cancelled()
            self._observe(self._clock() - began, False)
            self._report(account, str(error))
            return None
        self._observe(self._clock() - began, "conflict" not in grant)
        if "conflict" in grant:
            conflict = grant["conflict"]
            self._report(account, f"this server has {account.settings}; other servers have {conflict}")
            return conflict
        if account.name in self._away:
            self._away.discard(account.name)
            log.info(f"{account.kind} is coordinated again", extra={account.kind: account.label})
        return None

    def _report(self, account: Account, why: str) -> None:
        if account.name not in self._away:
            self._away.add(account.name)
            log.warning(f"{account.kind} is not coordinated", extra={account.kind: account.label, "why": why})
        account.failed(why)


def _end_if_cancelled() -> None:
    """Raise the cancellation in whose place a library has returned, or has raised an error of its own."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
