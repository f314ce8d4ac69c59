"""BudgetLedgers remember where the servers of this process's streams count the budget of a session."""

import collections
import functools
import threading

__all__ = ["BudgetLedgers", "process_ledgers"]

SHARED = "shared"
"""What servers send that count a budget in a Redis."""
MOST_JOBS = 1_000
_ADVICE = "give all of them the same Redis, [coordination] url = 'redis://...'"


class BudgetLedgers:
    """By session. Safe to use from any thread."""

    def __init__(self) -> None:
        self._seen: collections.OrderedDict[str, str] = collections.OrderedDict()
        self._lock = threading.Lock()

    def problem(self, job: str, ledger: str, servers: int, first: str = "") -> str:
        """Why a server does not keep the budget of a job as one; empty if it does.

        `ledger` is what the server has sent, `servers` the number of those that are listed, and `first` what the driver
        was told: Spark repeats a task that has failed in a new process, which has met no server.
        """
        if not ledger:
            return "a server is too old to keep a budget; update it"
        if ledger == SHARED:
            return ""
        if servers > 1:
            return f"{servers} servers are listed, and each would keep a budget of its own; {_ADVICE}"
        with self._lock:
            seen = self._seen.setdefault(job, first or ledger)
            while len(self._seen) > MOST_JOBS:
                self._seen.popitem(last=False)
        if seen != ledger:
            return (
                "another server has counted the budget so far, or this one has restarted, so it does not know what was "
                f"spent; {_ADVICE}, or connect again for a new budget"
            )
        return ""


@functools.cache
def process_ledgers() -> BudgetLedgers:
    """Those of this process."""
    return BudgetLedgers()
