"""Cases of cascades: the threshold is chosen again here, and Spark computes what each of the two functions returns."""

import math
from fractions import Fraction

from tests.differential.cases import Case, draw_settings, draw_tables
from tests.differential.choices import Choices
from tests.differential.expressions import expression, scope_of

__all__ = ["draw_cascade"]

TARGETS = ("0.5", "0.8", "0.9", "0.95")
LEVELS = ("0.0", "0.5", "0.6", "0.95")
SILENT = (3, 7, 8)
"""The last digits of the numbers for which `guess` fails or returns a null."""
OPTIONS = ("", ".with_options(buffer_capacity=7)")


def draw_cascade(draw: Choices) -> Case:
    """A cascade, called in one of the ways in which it can be called."""
    settings = draw_settings(draw)
    tables = draw_tables(draw, settings)
    scope = scope_of(draw, tables[0], settings).without_remote()
    target, level, rows = draw.of(TARGETS), draw.of(LEVELS), draw.between(60, 400)
    dear = draw.of(("know", "know_as_struct"))
    least = threshold(rows, Fraction(target), Fraction(level))
    made = (
        f"remote.cascade(remote.function('guess'){draw.of(OPTIONS)}, remote.function({dear!r}), target={target}, "
        f"sample=spark.range({rows}).selectExpr('id', '{level}D'), "
        f"agree=lambda cheap, dear: cheap % 1000 == dear % 1000)"
    )
    x = f"pmod({expression(draw, scope, 'bigint', 1).sparks}, 100L)"
    rows_of_table = f"spark.sql({f'SELECT *, {x} AS `the x` FROM t'!r})"
    how = draw.of((_with_columns, _select, _frame, _sql, _condition))
    ours = f"(lambda rows, call: {how(level)})({rows_of_table}, {made})"
    sparks = f"{rows_of_table}.selectExpr('id', {_answer(least, level)!r})"
    if how is _condition:
        sparks += ".where('y > 1010').select('id')"
    tags = {"cascade", f"cascade {how.__name__.strip('_')}", *(["without threshold"] if least is None else [])}
    return Case(settings, tables[:1], ours, sparks, tags)


def threshold(rows: int, target: Fraction, level: Fraction) -> Fraction | None:
    """The threshold for the numbers below `rows`: the probabilities of its tests are exact."""
    digits = [number % 10 for number in range(rows) if number % 10 not in SILENT]
    digits.sort(reverse=True)
    tested = sorted({digits[math.ceil(len(digits) * part / 10) - 1] for part in range(1, 11)})
    allowed = (1 - Fraction("0.95")) / len(tested)
    for digit in tested:
        above = [each for each in digits if each >= digit]
        agreeing = sum(Fraction(each, 10) >= level for each in above)
        ways = (
            math.comb(len(above), k) * target**k * (1 - target) ** (len(above) - k)
            for k in range(agreeing, len(above) + 1)
        )
        if sum(ways) <= allowed:
            return Fraction(digit, 10)
    return None


def _answer(least: Fraction | None, level: str) -> str:
    x = "`the x`"
    if least is None:
        return f"{x} + 1000L AS y"
    silent = ", ".join(map(str, SILENT))
    confident = f"{x} % 10L >= {int(least * 10)}L AND {x} % 10L NOT IN ({silent})"
    guessed = f"{x} + CAST({x} % 10L / 10D < {level}D AS bigint)"
    return f"CASE WHEN {confident} THEN {guessed} ELSE {x} + 1000L END AS y"


def _call(level: str) -> str:
    return f"call('the x', F.lit({level}))"


def _with_columns(level: str) -> str:
    return f"remote.with_columns(rows, {{'y': {_call(level)}}}).select('id', 'y')"


def _select(level: str) -> str:
    return f"remote.select(rows, 'id', {_call(level)}.alias('y'), output_mode='unordered')"


def _frame(level: str) -> str:
    return f"rows.select('id', {_call(level)}.alias('y'))"


def _sql(level: str) -> str:
    query = f"SELECT id, cascaded(`the x`, {level}D) AS y FROM {{rows}}"
    return f"call.register('cascaded') and remote.sql({query!r}, rows=rows)"


def _condition(level: str) -> str:
    return f"rows.where({_call(level)} > 1010).select('id')"
