"""Runs a case, and again while it is shrunk; the Spark session is created once."""

import datetime as dt
from decimal import Decimal
from typing import Any

from tests.differential import world
from tests.differential.cases import Case
from tests.differential.compare import Outcome, difference, outcome

__all__ = ["run"]

NAMES: dict[str, Any] = {"dt": dt, "Decimal": Decimal, **{name: getattr(world, name) for name in world.__all__}}


def run(case: Case) -> tuple[str, Outcome, Outcome]:
    """The difference, our outcome, and Spark's."""
    world.configure(case.settings.conf())
    for table in case.tables:
        world.table(table.name, table.ddl, table.parts)
    found = outcome(lambda: eval(case.ours, dict(NAMES)))
    expected = outcome(lambda: eval(case.sparks, dict(NAMES)))
    return difference(found, expected, ordered=case.ordered, names=case.names), found, expected
