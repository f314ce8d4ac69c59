"""Random expressions of a type, with remote functions in them."""

import dataclasses
from collections.abc import Callable

from tests.differential.both import Both, both
from tests.differential.choices import Choices
from tests.differential.imitations import identity
from tests.differential.plugin.suffixes import SUFFIXES
from tests.differential.tables import Settings, Table, quoted
from tests.differential.values import COLLATED, ORDERABLE

__all__ = ["Field", "Scope", "condition", "expression", "scope_of"]

LITERALS = {
    "bigint": "2L", "int": "1", "string": "'a'", "double": "0.5D", "boolean": "true", "date": "DATE '2026-03-29'",
    "timestamp": "TIMESTAMP '2026-03-29 01:30:00'", "timestamp_ntz": "TIMESTAMP_NTZ '2026-03-29 02:30:00'",
    "decimal(10,2)": "CAST(1.25 AS decimal(10,2))", "interval day to second": "INTERVAL '1 02:00:00' DAY TO SECOND",
    "time(6)": "TIME '02:30:00'", COLLATED: "'a' COLLATE UTF8_LCASE", "variant": """parse_json('{"a":1}')""",
    "interval year to month": "INTERVAL '1-1' YEAR TO MONTH",
}  # fmt: skip
COMPARISONS = ("{} > {}", "{} = {}", "{} <=> {}", "{} <= {}", "{} <> {}", "{} BETWEEN {} AND {}", "{} IN ({}, {})")


@dataclasses.dataclass(frozen=True)
class Field:
    """A column as a query may refer to it."""

    text: Both
    type: str
    nullable: bool = True


@dataclasses.dataclass
class Scope:
    """The names to which an expression may refer."""

    fields: list[Field]
    settings: Settings
    unique: list[Both] = dataclasses.field(default_factory=list)
    """Columns that together identify a row; empty if unknown."""
    others: tuple[Table, ...] = ()
    """Tables for subqueries in expressions."""
    tags: set[str] = dataclasses.field(default_factory=set)
    """The constructs that were used, for the report."""
    remote: bool = True
    """Whether expressions may contain remote scalar functions."""
    made: dict[str, list[Both]] = dataclasses.field(default_factory=dict)
    """Calls that the query already contains, by type."""

    def of_type(self, *types: str) -> list[Field]:
        """The fields of these types."""
        return [field for field in self.fields if field.type in types]

    def comparable(self) -> list[Field]:
        """The fields that can be ordered and grouped by; a literal if there are none."""
        return [field for field in self.fields if field.type in ORDERABLE] or [Field(both("1L"), "bigint")]

    def without_remote(self) -> "Scope":
        """The same, for expressions without remote functions."""
        return dataclasses.replace(self, remote=False, others=(), made={})


def scope_of(
    draw: Choices, table: Table, settings: Settings, qualifier: str = "", others: tuple[Table, ...] = ()
) -> Scope:
    """The columns of a table; if case does not matter, sometimes in another case."""
    fields = []
    for column in table.columns:
        name = quoted(column.name)
        if not settings.case_sensitive and draw.chance(10):
            name = name.swapcase()
        fields.append(Field(both("{}", f"{qualifier}{name}"), column.type, column.nullable))
    for field in list(fields):
        if field.type.startswith("struct"):
            fields.append(Field(both("{}.v", field.text), "bigint"))
            fields.append(Field(both("{}.`B.c`", field.text), "string"))
    return Scope(fields, settings, [fields[0].text], others)


def expression(draw: Choices, scope: Scope, type_: str, depth: int = 2) -> Both:
    """A random expression of the type."""
    fields = scope.of_type(type_)
    leaf = [field.text for field in fields] or [both("{}", LITERALS.get(type_, f"CAST(NULL AS {type_})"))]
    if depth == 0:
        return draw.of(leaf)
    inner: Callable[[str], Both] = lambda wanted: expression(draw, scope, wanted, depth - 1)  # noqa: E731

    def remote() -> Both:
        scope.tags.add("scalar")
        known = scope.made.setdefault(type_, [])
        if known and draw.chance(25):
            scope.tags.add("repeated call")
            return draw.of(known)
        known.append(identity(draw, type_, inner(type_)))
        return known[-1]

    def composed() -> Both:
        templates = COMPOSED.get(type_, ())
        shared = ("CASE WHEN {boolean} THEN {self} ELSE {self} END", "coalesce({self}, {self})")
        template, types = _parsed(draw.of((*templates, *shared)), type_)
        return both(template, *(inner(wanted) for wanted in types))

    def special() -> Both:
        return draw.of(SPECIAL.get(type_, (lambda *_: draw.of(leaf),)))(draw, scope)

    remotely = [(35, remote)] if scope.remote and type_ in SUFFIXES else []
    return draw.weighted([(35, lambda: draw.of(leaf)), (25, composed), *remotely, (8, special)])()


def condition(draw: Choices, scope: Scope, depth: int = 1) -> Both:
    """A random condition."""
    return expression(draw, scope, "boolean", depth + 1)


COMPOSED: dict[str, tuple[str, ...]] = {
    "bigint": (
        "{bigint} + {bigint}", "({bigint} - {int})", "-({bigint})", "{bigint} % 3L", "({bigint}) * 2",
        "CAST({int} AS bigint)", "CAST(size({array<bigint>}) AS bigint)", "CAST(length({string}) AS bigint)",
        "try_variant_get({variant}, '$.a', 'bigint')", "CAST(hour({time(6)}) AS bigint)",
    ),
    "int": ("{int} + 1", "CAST({bigint} AS int)", "length({string})", "year({date})", "hour({timestamp})"),
    "string": (
        "upper({string})", "concat({string}, {string})", "CAST({bigint} AS string)", "CAST({timestamp} AS string)",
        "{string} || 'x'", "CAST({string collate UTF8_LCASE} AS string)", "CAST({interval year to month} AS string)",
        "CAST({time(6)} AS string)",
    ),
    "double": ("CAST({bigint} AS double)", "{double} * 0.5D", "-({double})", "CAST({float} AS double)"),
    "boolean": (
        "{bigint} > {bigint}", "{string} = {string}", "{bigint} IS NULL", "{double} <=> {double}", "NOT {boolean}",
        "({boolean} AND {boolean})", "({boolean} OR {boolean})", "{string} LIKE 'a%'", "{bigint} IN (1L, {bigint})",
        "{timestamp} < {timestamp}", "{bigint} BETWEEN 0 AND {bigint}", "{double} > 0.25", "{string} IS NOT NULL",
        "{string collate UTF8_LCASE} = 'a'", "{time(6)} < {time(6)}", "{variant} IS NULL",
        "{interval year to month} > {interval year to month}",
    ),
    "timestamp": (
        "{timestamp} + INTERVAL 1 HOUR", "CAST({timestamp_ntz} AS timestamp)", "{timestamp} - INTERVAL 1 DAY",
        "{timestamp} + {interval year to month}",
    ),
    "timestamp_ntz": ("{timestamp_ntz} + INTERVAL '30' MINUTE", "CAST({timestamp} AS timestamp_ntz)"),
    "date": ("date_add({date}, 1)", "CAST({timestamp} AS date)"),
    "array<bigint>": ("array({bigint}, {bigint})", "sort_array({array<bigint>})"),
    "map<string,bigint>": ("map('z', {bigint})",),
    "decimal(10,2)": ("CAST({int} % 100 AS decimal(10,2))",),
    "time(6)": ("{time(6)} + INTERVAL '10' MINUTE", "CAST({timestamp_ntz} AS time(6))"),
    "interval year to month": ("-({self})", "make_ym_interval(0, {int})"),
    "variant": ("to_variant_object({array<bigint>})",),
}  # fmt: skip
"""Templates by type; braces contain the type of an operand."""


def _parsed(template: str, own: str) -> tuple[str, list[str]]:
    """The template with empty braces, and the types that they contained."""
    plain, types, rest = "", [], template
    while "{" in rest:
        before, _, rest = rest.partition("{")
        type_, _, rest = rest.partition("}")
        plain += before + "{}"
        types.append(own if type_ == "self" else type_)
    return plain + rest, types


def _guarded(draw: Choices, scope: Scope) -> Both:
    """A division that fails under ANSI unless its guard is true."""
    scope.tags.add("guarded")
    by = expression(draw, scope.without_remote(), "bigint", 0)
    template = draw.of((
        "CASE WHEN {0} <> 0 THEN 10 div {0} END", "IF({0} = 0, -1L, 10 div {0})",
        "CASE {0} WHEN 0L THEN 0L ELSE 10 % {0} END",
    ))  # fmt: skip
    return Both(template.format(by.ours), template.format(by.sparks))


def _unguarded(draw: Choices, scope: Scope) -> Both:
    scope.tags.add("division")
    by = expression(draw, scope.without_remote(), "bigint", 0)
    return both("10 div {}", by)


def _with_defaults(draw: Choices, scope: Scope) -> Both:
    if not scope.remote:
        return both("3L")
    scope.tags.add("defaults")
    x = expression(draw, scope, "bigint", 1)
    return draw.of((
        Both("one()", "coalesce(1L, 1L)"), Both(f"plus({x.ours})", f"({x.sparks} + 1L)"),
        Both(f"pair({x.ours}, 'y').x", f"({x.sparks})"),
    ))  # fmt: skip


def _without_collation(draw: Choices, scope: Scope) -> Both:
    """A remote function accepts strings with any collation and returns strings without one."""
    collated = expression(draw, scope, COLLATED, 0)
    if not scope.remote:
        return both("CAST({} AS string)", collated)
    scope.tags.add("collated argument")
    return Both(f"same_string({collated.ours})", f"CAST(coalesce({collated.sparks}) AS string)")


def _subquery(draw: Choices, scope: Scope) -> Both:
    if not scope.others:
        return both("5L")
    scope.tags.add("scalar subquery")
    table = draw.of(scope.others)
    inner = scope_of(draw, table, scope.settings)
    inner.tags = scope.tags
    argument = expression(draw, inner, "bigint", 1)
    where = both(" WHERE {}", condition(draw, inner, 0)) if draw.chance(30) else both("")
    ours, sparks = draw.of((("max", "max"), ("sum_bigint", "sum"), ("vsum_bigint", "sum"), ("count_bigint", "count")))
    call = Both(f"{ours}({argument.ours})", f"{sparks}({argument.sparks})")
    return both("(SELECT {} FROM {}{})", call, table.name, where)


def _in_subquery(draw: Choices, scope: Scope) -> Both:
    if not scope.others:
        return both("true")
    scope.tags.add("IN or EXISTS")
    table = draw.of(scope.others)
    inner = scope_of(draw, table, scope.settings, "z.")
    inner.tags = scope.tags
    type_ = draw.of(("bigint", *{field.type for field in inner.fields if field.type in ORDERABLE}))
    item, left = expression(draw, inner, type_, 1), expression(draw, scope.without_remote(), type_, 0)
    source = f"{table.name} AS z"
    return draw.of((
        both("{} IN (SELECT {} FROM {})", left, item, source),
        both("{} NOT IN (SELECT {} FROM {})", left, item, source),
        both("EXISTS (SELECT 1 FROM {} WHERE {} = {})", source, item, left),
    ))  # fmt: skip


def _compared(draw: Choices, scope: Scope) -> Both:
    """A comparison of two values of any comparable type."""
    type_ = draw.of(sorted({field.type for field in scope.fields if field.type in ORDERABLE}) or ["bigint"])
    template = draw.of(COMPARISONS)
    return both(template, *(expression(draw, scope, type_, 1) for _ in range(template.count("{}"))))


SPECIAL: dict[str, tuple[Callable[[Choices, Scope], Both], ...]] = {
    "bigint": (_guarded, _with_defaults, _subquery, _unguarded),
    "boolean": (_compared, _compared, _in_subquery),
    "string": (_without_collation,),
}
