"""Cases of the DataFrame API: with_columns, select, group_by and its siblings, over, windows."""

import dataclasses
from collections.abc import Callable

from tests.differential.both import Both, both, joined
from tests.differential.cases import Case, draw_settings, draw_tables
from tests.differential.choices import Choices
from tests.differential.expressions import Scope, condition, expression, scope_of
from tests.differential.imitations import IDENTITIES, Aggregate, aggregates_of
from tests.differential.plugin.suffixes import SUFFIXES
from tests.differential.tables import Table, quoted
from tests.differential.values import COLLATED, ORDERABLE
from tests.differential.windows import Windows, draw_windows

__all__ = ["draw_frame"]

NAMES = ("z", "y", "x.y", "has space", "é", "q`q", "v", "k")
OPTIONS = ("", ', output_mode="unordered"', ', on_error="null"')
RANGES = {
    "bigint": (("-1", "1 PRECEDING"), ("-5", "5 PRECEDING"), ("2", "2 FOLLOWING")),
    "double": (("-0.5", "0.5D PRECEDING"), ("1.25", "1.25D FOLLOWING"), ("1e308", "1e308D FOLLOWING")),
    "timestamp": (
        ("'-1 hour'", "INTERVAL 1 HOUR PRECEDING"), ("dt.timedelta(days=-1)", "INTERVAL 1 DAY PRECEDING"),
        ("'20 minutes'", "INTERVAL 20 MINUTES FOLLOWING"),
        ("dt.timedelta(days=1, hours=1)", "INTERVAL '1 01:00:00' DAY TO SECOND FOLLOWING"),
    ),
    "timestamp_ntz": (("'-1 day'", "INTERVAL 1 DAY PRECEDING"), ("'1 hour'", "INTERVAL 1 HOUR FOLLOWING")),
}  # fmt: skip
"""Bounds of RANGE frames by the type of the order: in Python, and in SQL."""


@dataclasses.dataclass
class _Drawing:
    """The state that the parts of a case share."""

    draw: Choices
    scope: Scope
    frame: Both
    table: Table

    def text(self, type_: str, depth: int = 1) -> str:
        """An expression of Spark's."""
        return expression(self.draw, self.scope.without_remote(), type_, depth).sparks

    def scalar(self, depth: int = 2) -> Both:
        """A column with a remote function around it, perhaps with several."""
        type_ = self.draw.of(("bigint", *(field.type for field in self.scope.fields if field.type in SUFFIXES)))
        argument = both("F.expr({})", repr(self.text(type_)))
        for _ in range(self.draw.between(1, depth)):
            name = self.draw.of(tuple(IDENTITIES))
            repeated = ", ".join([argument.sparks] * IDENTITIES[name])
            argument = Both(
                f"remote.function({name + '_' + SUFFIXES[type_]!r})({argument.ours})", f"F.coalesce({repeated})"
            )
        self.scope.tags.add("scalar")
        return argument

    def name(self, left: list[str]) -> str:
        """A name that is not used yet."""
        return left.pop(self.draw.below(len(left)))


def draw_frame(draw: Choices) -> Case:
    """A call of the remote session on a DataFrame, and Spark's equivalent."""
    settings = draw_settings(draw)
    tables = draw_tables(draw, settings)
    tags = {"frame"}
    scope = scope_of(draw, tables[0], settings)
    scope.tags = tags
    frame = both("spark.table('t')")
    if draw.chance(30):
        frame = both("spark.table('t').where({})", repr(condition(draw, scope.without_remote(), 0).sparks))
    drawing = _Drawing(draw, scope, frame, tables[0])
    times = tables[0].of_type("timestamp", "timestamp_ntz")
    kinds = [(25, _with_columns), (20, _select), (35, _grouped), *([(20, _windowed)] if times else [])]
    calls = draw.weighted(kinds)(drawing)
    return Case(settings, tables[:1], calls.ours, calls.sparks, tags)


def _with_columns(it: _Drawing) -> Both:
    it.scope.tags.add("with_columns")
    left = list(NAMES)
    pairs = it.draw.several(lambda: both("{}: {}", repr(it.name(left)), _call(it)), 1, 3)
    calls = joined(", ", pairs)
    options = it.draw.of(OPTIONS) if "over" not in it.scope.tags else ""
    ours = f"remote.with_columns({it.frame.ours}, {{{calls.ours}}}{options})"
    return Both(ours, f"{it.frame.sparks}.withColumns({{{calls.sparks}}})")


def _select(it: _Drawing) -> Both:
    it.scope.tags.add("select")
    left = list(NAMES)
    plain = [
        it.draw.of((repr(field.text.ours), f"F.col({field.text.ours!r})"))
        for field in it.draw.some(it.scope.fields, 0, 3)
    ]
    calls = it.draw.several(lambda: both("{}.alias({})", _call(it), repr(it.name(left))), 1, 3)
    items = joined(", ", [*(both("{}", each) for each in plain), *calls])
    return Both(f"remote.select({it.frame.ours}, {items.ours})", f"{it.frame.sparks}.select({items.sparks})")


def _call(it: _Drawing) -> Both:
    return _over(it) if it.draw.chance(40) else it.scalar()


def _grouped(it: _Drawing) -> Both:
    keys = it.draw.some([field for field in it.scope.fields if field.type in ORDERABLE], 1, 2)
    listed = [it.draw.of((repr(key.text.ours), f"F.col({key.text.ours!r})")) for key in keys]
    # Spark takes equal expressions for one key of CUBE.
    if it.draw.chance(20) and (text := it.text(keys[-1].type)) not in [key.text.ours for key in keys[:-1]]:
        listed[-1] = f"F.expr({text!r}).alias('key')"
    how = it.draw.of(("group_by", "rollup", "cube", "grouping_sets")) if it.draw.chance(50) else "group_by"
    it.scope.tags.add(f"df {how}")
    arguments = ", ".join(listed)
    if how == "grouping_sets":
        sets = [it.draw.some(listed) for _ in range(2)] + [listed]
        arguments = f"[{', '.join('[' + ', '.join(each) + ']' for each in sets)}], {arguments}"
    method = {"group_by": "groupBy", "rollup": "rollup", "cube": "cube", "grouping_sets": "groupingSets"}[how]
    grouped = _aggregated(it, it.frame, it.frame.sparks, how, method, arguments)
    # If a collation considers keys equal, Spark may return any of them.
    lowered = [f"f.columns[{at}]: F.lower(f[{at}])" for at, key in enumerate(keys) if key.type == COLLATED]
    return both("{}.transform(lambda f: f.withColumns({{{}}}))", grouped, ", ".join(lowered)) if lowered else grouped


def _windowed(it: _Drawing) -> Both:
    time = it.draw.of(it.table.of_type("timestamp", "timestamp_ntz")).name
    windows = draw_windows(it.draw)
    it.scope.tags |= {windows.kind, f"df {windows.kind}"}
    frame = _in_windows(it.frame, windows, time)
    how = it.draw.weighted([(60, _grouped_windows), (20, _first_of_windows), (20, _joined_windows)])
    return how(it, frame, lambda rows: _in_windows(rows, windows, time))


def _in_windows(frame: Both, windows: Windows, time: str) -> Both:
    lengths = [windows.size] if windows.kind == "TUMBLE" else [windows.step, windows.size]
    texts = ", ".join(f"'{minutes} minutes'" for minutes in [*lengths, *([windows.offset] if windows.offset else [])])
    rows = f"SELECT * FROM {windows.rows_of_spark('{rows}', quoted(time))}"
    ours = f"w.{windows.kind.lower()}({frame.ours}, {time!r}, {texts})"
    return Both(ours, f"spark.sql({rows!r}, rows={frame.sparks})")


def _grouped_windows(it: _Drawing, frame: Both, _: object) -> Both:
    it.scope.unique = []
    return _aggregated(it, frame, frame.sparks, "group_by", "groupBy", "'window_start', 'window_end'")


def _first_of_windows(it: _Drawing, frame: Both, _: object) -> Both:
    it.scope.tags.add("window_top_n")
    rank, n, down = it.draw.of(("row_number", "rank", "dense_rank")), it.draw.between(1, 3), it.draw.chance(50)
    keys = ["k"] * it.draw.chance(50)
    order = "[desc('v'), 'id']" if down else "['v', 'id']"
    partition = ", ".join(["window_start", "window_end", *keys])
    nth = f"{rank}() OVER (PARTITION BY {partition} ORDER BY v{' DESC' if down else ''}, id) AS nth"
    ours = f"w.window_top_n({frame.ours}, {n}, {order}, {keys}, rank={rank!r})"
    sparks = f"{frame.sparks}.selectExpr('*', {nth!r}).where('nth <= {n}')"
    return both("{}.select('id', 'v', 'window_start', 'window_end')", Both(ours, sparks))


def _joined_windows(it: _Drawing, frame: Both, in_windows: Callable[[Both], Both]) -> Both:
    it.scope.tags.add("window_join")
    how = it.draw.of(("inner", "left", "right", "full", "semi", "anti"))
    keys = ["k"] * it.draw.chance(60)
    shown = ["window_start", "window_end", *keys]
    other = in_windows(both("spark.table('t').where('id % 3 <> 1').withColumnRenamed('id', 'other')"))
    left, right = (
        both("{}.select({})", rows, ", ".join(map(repr, [*shown, name])))
        for rows, name in ((frame, "id"), (other, "other"))
    )
    ours = f"w.window_join({left.ours}, {right.ours}, {keys}, {how!r})"
    return Both(ours, f"{left.sparks}.join({right.sparks}, {shown}, {how!r})")


def _aggregated(it: _Drawing, frame: Both, sparks: str, how: str, method: str, arguments: str) -> Both:
    left = [name for name in NAMES if name not in ("v", "k")]
    as_column = it.draw.chance(20)

    def item() -> Both:
        return both("{}.alias({})", _column(it) if as_column else _aggregate(it), repr(it.name(left)))

    items = joined(", ", it.draw.several(item, 1, 3))
    if as_column:
        it.scope.tags.add("column")
        ours = f"{frame.ours}.{method}({arguments}).agg({items.ours})"
        return Both(ours, f"{sparks}.{method}({arguments}).agg({items.sparks})")
    if it.draw.chance(25):
        items = both("{}, F.expr({}).alias('own')", items, repr(f"sum({it.text('bigint')})"))
    ours = f"remote.{how}({frame.ours}, {arguments}).agg({items.ours})"
    return Both(ours, f"{sparks}.{method}({arguments}).agg({items.sparks})")


def _chosen(it: _Drawing, *, ordered: bool) -> tuple[Aggregate, list[str]]:
    known = aggregates_of({field.type for field in it.scope.fields} | {"bigint"})
    found = [each for each in known if (ordered or not each.ordered) and (it.scope.unique or not each.unique)]
    chosen = it.draw.of(found)
    arguments = [it.text(chosen.parameters[0])]
    return chosen, arguments + ([it.scope.unique[0].sparks] if chosen.unique else [])


def _column(it: _Drawing) -> Both:
    """An aggregate as one of Spark's own, without what Spark refuses for these."""
    chosen, arguments = _chosen(it, ordered=False)
    called = ", ".join(f"F.expr({each!r})" for each in arguments)
    ours = f"remote.function({chosen.name!r}).column({called})"
    return Both(ours, f"F.expr({chosen.sparks.format(*arguments)!r})")


def _aggregate(it: _Drawing) -> Both:
    chosen, arguments = _chosen(it, ordered=False)
    it.scope.tags.add(chosen.name.rsplit("_", 1)[0])
    ours = f"remote.function({chosen.name!r})({', '.join(f'F.expr({each!r})' for each in arguments)})"
    distinct, filtered = "", ""
    if chosen.parameters[0] in ORDERABLE and not chosen.unique and it.draw.chance(20):
        it.scope.tags.add("DISTINCT")
        distinct, ours = "DISTINCT ", f"{ours}.distinct()"
    if it.draw.chance(25):
        it.scope.tags.add("FILTER")
        test = it.text("boolean")
        filtered, ours = f" FILTER (WHERE {test})", f"{ours}.filter(F.expr({test!r}))"
    text = chosen.sparks.format(distinct + arguments[0], *arguments[1:])
    return Both(ours, f"F.expr({text + filtered!r})")


def _over(it: _Drawing) -> Both:
    it.scope.tags.add("over")
    kind = it.draw.of(("whole", "running", "rows", "range"))
    chosen, arguments = _chosen(it, ordered=kind in ("running", "rows"))
    comparable = [field for field in it.scope.fields if field.type in ORDERABLE]
    partition = it.draw.some(comparable, 0, 2)
    window = f"Window.partitionBy({', '.join(repr(field.text.ours) for field in partition)})"
    spec = f"PARTITION BY {', '.join(field.text.ours for field in partition)}" if partition else ""
    if kind in ("running", "rows"):
        order, down = it.draw.of(comparable).text.ours, it.draw.chance(40)
        window += f".orderBy({f'desc({order!r})' if down else repr(order)}, 'id')"
        spec += f" ORDER BY {order}{' DESC' if down else ''}, id"
    if kind == "rows":
        start = it.draw.between(0, 5) - 3
        end = it.draw.between(start, 3)
        window += f".rowsBetween({start}, {end})"
        spec += f" ROWS BETWEEN {_bound(start)} AND {_bound(end)}"
    if kind == "range":
        field = it.draw.of(it.scope.of_type(*RANGES))
        bounds = it.draw.some(RANGES[field.type], 1, 1)
        backwards = bounds[0][1].endswith("PRECEDING")
        first, last = (bounds[0], ("0", "CURRENT ROW")) if backwards else (("0", "CURRENT ROW"), bounds[0])
        down = it.draw.chance(40)
        window += f".orderBy({f'desc({field.text.ours!r})' if down else repr(field.text.ours)})"
        window += f".rangeBetween({first[0]}, {last[0]})"
        spec += f" ORDER BY {field.text.ours}{' DESC' if down else ''} RANGE BETWEEN {first[1]} AND {last[1]}"
        it.scope.tags.add(f"RANGE over {field.type}")
    ours = f"remote.function({chosen.name!r})({', '.join(f'F.expr({each!r})' for each in arguments)}).over({window})"
    return Both(ours, f"F.expr({chosen.sparks.format(*arguments) + f' OVER ({spec})'!r})")


def _bound(offset: int) -> str:
    return "CURRENT ROW" if offset == 0 else f"{abs(offset)} {'PRECEDING' if offset < 0 else 'FOLLOWING'}"
