"""Assigns remote functions to the expressions of Spark that they imitate."""

import dataclasses

from tests.differential.both import Both
from tests.differential.choices import Choices
from tests.differential.plugin.of_any_type import COMPARED, LISTED
from tests.differential.plugin.suffixes import SUFFIXES

__all__ = ["AGGREGATES", "IDENTITIES", "Aggregate", "aggregates_of", "identity"]

IDENTITIES = {"same": 2, "vsame": 1, "dsame": 3}
"""Remote functions that return their argument, by the number of times that Spark's `coalesce` has it.

Each has an expression of its own: expressions that are equal in Spark only would be one key of CUBE there, two here.
"""


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """A remote aggregate, and Spark's expression for it, with `{}` for each argument."""

    name: str
    parameters: tuple[str, ...]
    returns: str
    sparks: str
    ordered: bool = False
    """Whether the value depends on the order of the rows."""
    unique: bool = False
    """Whether the value is determined only if the last argument is unique."""
    sorted_by: str = ""
    """Spark's equivalent over the rows sorted by the second argument, if there is one."""


AGGREGATES = (
    Aggregate("sum_bigint", ("bigint",), "bigint", "sum({})"),
    Aggregate("vsum_bigint", ("bigint",), "bigint", "sum({})"),
    Aggregate("bsum_bigint", ("bigint",), "bigint", "sum({})"),
    Aggregate("rsum_bigint", ("bigint",), "bigint", "sum({})"),
    Aggregate("sum_decimal", ("decimal(10,2)",), "decimal(20,2)", "sum({})"),
    Aggregate("vsum_double", ("double",), "double", "sum({})"),
    Aggregate("avg_double", ("double",), "double", "avg({})"),
    Aggregate("median_bigint", ("bigint",), "double", "median({})"),
    # Spark's median of 0.0 and -0.0 is the one or the other, by the order in which they meet.
    Aggregate("median_double", ("double",), "double", "median(({}) + 0.0D)"),
    *(Aggregate(f"count_{suffix}", (type_,), "bigint", "count({})") for type_, suffix in SUFFIXES.items()),
    *(Aggregate(f"max_{SUFFIXES[type_]}", (type_,), type_, "max({})") for type_ in COMPARED),
    *(
        Aggregate(f"list_{SUFFIXES[type_]}", (type_,), f"array<{type_}>", "collect_list({})", ordered=True)
        for type_ in LISTED
    ),
    *(
        Aggregate(f"min_by_{suffix}", (type_, "bigint"), type_, "min_by({}, {})", unique=True)
        for type_, suffix in SUFFIXES.items()
    ),
    *(
        Aggregate(f"{end}_{suffix}", (type_,), type_, f"{end}({{}})", ordered=True, sorted_by=by)
        for type_, suffix in SUFFIXES.items()
        for end, by in (("first", "min_by({}, {})"), ("last", "max_by({}, {})"))
    ),
)


def aggregates_of(types: set[str]) -> list[Aggregate]:
    """The aggregates whose first parameter is of one of the types; the simplest first."""
    return [each for each in AGGREGATES if each.parameters[0] in types]


def identity(draw: Choices, type_: str, argument: Both) -> Both:
    """A remote function that returns its argument; Spark's equivalent is also a call, and not a name."""
    name = draw.of(tuple(IDENTITIES))
    repeated = ", ".join([argument.sparks] * IDENTITIES[name])
    return Both(f"{name}_{SUFFIXES[type_]}({argument.ours})", f"coalesce({repeated})")
