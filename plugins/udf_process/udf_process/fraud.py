"""Rules that apply to every key and can be changed while the function runs."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import udf_server as udf
from udf_server import ArgumentTrait, ListView, MapView, StateHint

__all__ = ["FraudRules", "Rule"]


@dataclass
class Rule:
    """Alerts on `at_least` payments within `seconds` with a sum of `total` or more; removed if `at_least` is null."""

    name: str
    at_least: int | None = None
    total: float | None = None
    seconds: float | None = None


@dataclass
class Payment:
    """The part of a payment that is kept."""

    time: datetime.datetime
    amount: float


class FraudRules(udf.ProcessTableFunction):
    """An alert for each rule that a payment breaks, together with earlier payments of the same key.

    `payments` has a column `amount`, a number, and a time, which on_time names. `rules` are `name string,
    at_least int, total double, seconds double`, by position; a later rule replaces an earlier one with the same
    name. In batch all rules are known before the first payment.
    """

    name = "fraud_rules"
    returns = "rule string, payments bigint, total double"

    def eval(
        self,
        ctx: udf.ProcessContext,
        rules: Annotated[MapView[str, Rule], StateHint(broadcast=True)],
        recent: ListView[Payment],
        payments: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE],
        rule: Annotated[Rule, ArgumentTrait.BROADCAST_SEMANTIC_TABLE],
        time: str = "time",
    ) -> Iterator[tuple[str, int, float]]:
        if rule is not None:
            if rule.at_least is None:
                rules.pop(rule.name, None)
            else:
                rules[rule.name] = rule
            return
        now, amount = payments[time], payments["amount"]
        if now is None or amount is None:
            return
        if now.tzinfo is None:
            # A timestamp_ntz. The state has a zone, and only differences are used.
            now = now.replace(tzinfo=datetime.UTC)
        recent.append(Payment(now, float(amount)))
        longest = max((each.seconds or 0.0 for each in rules.values()), default=0.0)
        while recent and (now - recent[0].time).total_seconds() > longest:
            del recent[0]
        for each in rules.values():
            within = [past.amount for past in recent if (now - past.time).total_seconds() <= (each.seconds or 0.0)]
            if len(within) >= (each.at_least or 0) and sum(within) >= (each.total or 0.0):
                yield each.name, len(within), sum(within)
