"""What callers have spent by function, and how much is spent of each budget, for one process and for several."""

from collections.abc import Callable, Iterable
from typing import TypedDict

from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from udf_server.base.metrics import ServerMetrics
from udf_server.limits.budgets import Budgets

__all__ = [
    "BudgetSpending", "CallerSpending", "added_budgets", "added_callers", "budgets_of", "callers_of", "samples_of",
]  # fmt: skip

MOST = 200
"""Number of rows that are listed of each."""


class CallerSpending(TypedDict):
    """What a caller has spent on a function, by unit."""

    caller: str
    function: str
    spent: dict[str, float]


class BudgetSpending(TypedDict):
    """What is spent of a budget, and how much it is, by unit."""

    caller: str
    budget: str
    spent: dict[str, list[float]]


def samples_of(collector: Collector, end: str) -> Iterable[Sample]:
    """The samples of a collector whose name is the name of the metric and `end`."""
    for family in collector.collect():
        for sample in family.samples:
            if sample.name == family.name + end:
                yield sample


def callers_of(
    metrics: ServerMetrics, may_see: Callable[[str], bool], whose: Callable[[str], bool]
) -> list[CallerSpending]:
    """What callers have spent by function: those functions and callers for which the arguments return True."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for sample in samples_of(metrics.spent, "_total"):
        labels = sample.labels
        if may_see(labels["function"]) and whose(labels["caller"]):
            key = labels["caller"], f"{labels['function']}@{labels['version']}"
            found.setdefault(key, {})[labels["unit"]] = sample.value
    return _callers(found)


def added_callers(processes: Iterable[list[CallerSpending]]) -> list[CallerSpending]:
    """The sums over the processes of a server."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for rows in processes:
        for row in rows:
            total = found.setdefault((row["caller"], row["function"]), {})
            for unit, amount in row["spent"].items():
                total[unit] = total.get(unit, 0.0) + amount
    return _callers(found)


def _callers(found: dict[tuple[str, str], dict[str, float]]) -> list[CallerSpending]:
    rows: list[CallerSpending] = [
        {"caller": caller, "function": key, "spent": spent} for (caller, key), spent in sorted(found.items())
    ]
    return rows[:MOST]


def budgets_of(budgets: Budgets | None, whose: Callable[[str], bool]) -> list[BudgetSpending]:
    """What is spent of the budgets that this process serves, by all processes that share them."""
    if budgets is None:
        return []
    found: list[BudgetSpending] = [
        {"caller": budget.caller, "budget": budget.title, "spent": {unit: [*both] for unit, *both in budget.amounts()}}
        for budget in budgets.kept()
        if whose(budget.caller)
    ]
    return sorted(found, key=lambda row: (row["caller"], row["budget"]))[:MOST]


def added_budgets(processes: Iterable[list[BudgetSpending]]) -> list[BudgetSpending]:
    """The same for the processes of a server. The most that one knows was asked last."""
    found: dict[tuple[str, str], BudgetSpending] = {}
    for rows in processes:
        for row in rows:
            known = found.setdefault((row["caller"], row["budget"]), row)
            for unit, (spent, _) in row["spent"].items():
                known["spent"][unit][0] = max(known["spent"][unit][0], spent)
    return [found[key] for key in sorted(found)][:MOST]
