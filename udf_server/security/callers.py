"""CallerSettings are the operator's settings in `[callers.NAME]` of the server's file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from remote_udf.effective_options import canonical, resolve
from remote_udf.errors import InvalidOption
from remote_udf.option_tables import Option, option, table_of
from remote_udf.option_values import choice, count, reader
from udf_server.base.errors import InvalidConfig, InvalidCost
from udf_server.base.fairness import Priority
from udf_server.limits.budget_costs import Terms

__all__ = ["DEFAULT", "OTHERS", "CallerSettings", "parse_callers"]

OTHERS = "*"
"""The name of the table for callers that have none of their own."""
MOST_SHARE = 1_000


@reader("float", "{:.15g}".format)
def _share(value: str | float) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 1 / MOST_SHARE <= number <= MOST_SHARE:
        raise InvalidOption(f"{value!r} is not a number from {1 / MOST_SHARE:g} to {MOST_SHARE:,}")
    return number


@dataclass(frozen=True)
class CallerSettings:
    """What a caller may use of a server, and who is served first. A limit that is None is that of the server."""

    share: float = option(
        _share, 1.0, "Its part of a function that several callers want, in proportion to those of the others."
    )
    priority: Priority = option(
        choice(Priority), Priority.BATCH,
        "Rows of `batch` wait while rows of `interactive` wait for the same function.",
    )  # fmt: skip
    max_streams: int | None = option(count(1), None, "Maximum number of open streams.")
    max_rows_in_flight: int | None = option(
        count(1), None, "While it has this number of unanswered rows, its streams are not read."
    )
    budget: Terms | None = None
    """What its calls may spend in a day (UTC), on all servers that count together."""


DEFAULT = CallerSettings()
_OPTIONS = table_of(CallerSettings)
_BUDGET = {"budget": Option("budget", str, str, None, "")}
"""It is no text, so it is read apart; errors list its name."""


def parse_callers(tables: Mapping[str, Mapping[str, str | float | Mapping[str, float]]]) -> dict[str, CallerSettings]:
    """The settings by name of the caller; those of OTHERS are the defaults.

    Raises InvalidConfig, which names the caller and the key.
    """
    texts = {name: _texts(name, table) for name, table in tables.items()}
    budgets = {name: _budget(name, table["budget"]) for name, table in tables.items() if "budget" in table}
    others = texts.get(OTHERS, {})
    return {
        name: replace(resolve(CallerSettings, others, own), budget=budgets.get(name)) for name, own in texts.items()
    }


def _texts(name: str, table: Mapping[str, str | float | Mapping[str, float]]) -> Mapping[str, str]:
    source = f"setting callers.{name}"
    if not isinstance(table, dict):
        raise InvalidConfig(f"{source}: {table!r} is not a table; expected one with {', '.join((*_OPTIONS, 'budget'))}")
    try:
        own = {key: value for key, value in table.items() if key != "budget"}
        return canonical(own, source=source, known=(_OPTIONS, _BUDGET))
    except InvalidOption as error:
        raise InvalidConfig(str(error)) from None


def _budget(name: str, amounts: str | float | Mapping[str, float]) -> Terms:
    source = f"setting callers.{name}: budget"
    if name == OTHERS:
        raise InvalidConfig(f"{source}: a budget needs the name of a caller: others may be known by their address only")
    if amounts == {}:
        raise InvalidConfig(f"{source}: it is empty; expected amounts by unit, such as {{usd = 50}}")
    try:
        return Terms.of(amounts, source)
    except InvalidCost as error:
        raise InvalidConfig(str(error)) from None
