"""SelectSource: the rows that a SELECT reads, before grouping: its FROM, JOIN, LATERAL VIEW and WHERE."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeGuard

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import ArrayType, MapType, StructType, VariantType
from sqlglot import exp

from remote_udf.row_kinds import ROW_KIND
from spark_client.base.changelogs import CHANGE_TYPE
from spark_client.base.identifiers import quoted
from spark_client.planning.scans import selected, selected_as
from spark_client.sql.rows.calls import CLAUSES
from spark_client.sql.text.nodes import Node, alias_of
from spark_client.sql.text.parsing import error_at
from spark_client.sql.text.writers import canonical

__all__ = [
    "SelectSource",
    "alias_in",
    "aliased",
    "distinct_outputs",
    "is_column",
    "keep_names",
    "makes_rows",
    "only_relation",
    "output_names",
    "picked",
    "several_columns",
    "without_rows",
]

_ROWS = ("hint", "from_", "joins", "laterals", "where")
"""Parts of a SELECT that determine its rows."""
_KINDS = (ROW_KIND, CHANGE_TYPE)
_GENERATORS = ("inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "stack")
"""Functions of Spark's that return several columns."""
_OF_ONE_COLUMN = ("explode", "explode_outer", "variant_explode", "variant_explode_outer")
"""Functions of Spark's that return several rows of one column."""

_VALUES = ("current_date", "current_time", "current_timestamp", "current_user", "session_user", "user")
"""Functions of Spark that need no parentheses; it names their columns otherwise."""


class SelectSource:
    """The rows of one SELECT, made by `Scope.source`."""

    def __init__(self, select: Node, key: Callable[[str], str], run: Callable[..., DataFrame]) -> None:
        self.key = key
        """Two names are the same for Spark if their keys are equal."""
        self.run = run
        """Runs a query that replaces this SELECT. `whole` tells that every column is computed."""
        self._select = select
        tables = [select.args.get("from_"), *(select.args.get("joins") or ())]
        named = [table.this for table in tables if table is not None] + list(select.args.get("laterals") or ())
        self.relations = {self.key(table.alias_or_name) for table in named}
        """The keys of the names of the tables."""

    def names_relation(self, name: str) -> bool:
        """Whether one of the tables has that name or alias."""
        return self.key(name) in self.relations

    def is_of_relation(self, node: exp.Column) -> bool:
        """Whether a column, or a field of one, is qualified by its table: `t.x` or `t.x.field`."""
        return len(node.parts) > 1 and self.names_relation(node.parts[0].name)

    def shows(self, node: exp.Column) -> bool:
        """Whether `t.x` is no field of an item `t`: the SELECT returns that column, or the item has no such field."""
        if self.names_relation(node.table):
            returned = any(
                item.is_star or (isinstance(item, exp.Column) and self.same(item) == self.same(node))
                for item in self._select.expressions
            )
            return returned or self._is_without_fields(node.table)
        first, *rest = node.parts
        return bool(rest) and self.has(first.name) and self._is_without_fields(first.name)

    def _is_without_fields(self, name: str) -> bool:
        """Whether an item of this name has no fields. Then Spark takes the column or the table of that name."""
        items = [each.this for each in self._select.expressions if self.key(each.alias) == self.key(name)]
        try:
            types = [self.base({"item": item}).schema[0].dataType for item in items]
        except AnalysisException:
            return False  # of an aggregate
        return bool(types) and not isinstance(types[0], (ArrayType, MapType, StructType, VariantType))

    @functools.cached_property
    def frame(self) -> DataFrame:
        """The rows with all columns."""
        return self.base({}, [exp.Star()])

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.frame.columns)

    @property
    def kind_column(self) -> str | None:
        """The column that makes the rows a changelog; None if there is none, or if the SELECT uses it as data."""
        if self.uses_kind:
            return None
        kinds = [name for name in self.columns if self.key(name) in _KINDS]
        if len(set(map(self.key, kinds))) < len(kinds):
            what = f"several tables have a column {kinds[0]!r}, and a join of changelogs is not a changelog"
            raise error_at(self._select, f"{what}: name the columns that are needed of each in a subquery")
        return kinds[0] if kinds else None

    @property
    def uses_kind(self) -> bool:
        """Whether the SELECT names the column with the kind of a row outside of WHERE."""
        clauses = [*self._select.expressions, *(self._select.args.get(part) for part in ("group", *CLAUSES))]
        clauses += self._select.args.get("windows") or ()
        nodes = (node for clause in clauses if clause is not None for node in clause.walk())
        return any(isinstance(node, exp.Column) and self.key(node.name) in _KINDS for node in nodes)

    @property
    def only_table(self) -> exp.Table | None:
        """The only table of the SELECT, unchanged; None if there are several tables, or a subquery."""
        source = self._select.args.get("from_")
        alone = not any(self._select.args.get(part) for part in ("joins", "laterals", "hint"))
        return source.this if alone and source is not None and isinstance(source.this, exp.Table) else None

    def over(self, table: Node) -> "SelectSource":
        """The rows of the SELECT with another table in place of `only_table`."""
        select = self._select.copy()
        own = select.args["from_"].this
        alias = own.args.get("alias") or alias_of(own.name)
        table.set("alias", alias.copy())
        own.replace(table)
        return SelectSource(select, self.key, self.run)

    def where(self, conditions: Sequence[Node]) -> "SelectSource":
        """The rows for which these conditions hold as well."""
        if not conditions:
            return self
        select, own = self._select.copy(), self.condition
        first = [] if own is None else [exp.paren(own.this.copy(), copy=False)]
        select.set("where", exp.Where(this=exp.and_(*first, *conditions)))
        return SelectSource(select, self.key, self.run)

    @property
    def condition(self) -> Node | None:
        """The WHERE clause, or None."""
        return self._select.args.get("where")

    def has(self, name: str) -> bool:
        """Whether there is a column of that name."""
        return self.key(name) in map(self.key, self.columns)

    def constant_name(self, node: Node) -> str | None:
        """The name of a value that no column is: CURRENT_DATE, or a variable of the session; None if it is none."""
        try:
            return self.run(exp.select(node.copy())).columns[0]
        except AnalysisException:
            return None

    def base(self, items: Mapping[str, Node], stars: Sequence[Node] = (), windows: Sequence[Node] = ()) -> DataFrame:
        """The rows with the columns of the stars, followed by these expressions, by name.

        `windows` are those of a WINDOW clause to which the expressions may refer.
        """
        columns = [star.copy() for star in stars]
        columns += [exp.alias_(tree.copy(), name, quoted=True) for name, tree in items.items()]
        if "frame" in vars(self) and items and not stars and (found := picked(self.frame, columns)) is not None:
            return found
        query = self.selecting(columns or [exp.Literal.number(1)])
        if windows:
            query.set("windows", [window.copy() for window in windows])
        return self.run(query, whole=True)

    def selecting(self, columns: Sequence[Node]) -> Node:
        """A SELECT of these columns from the rows."""
        select = exp.Select(expressions=list(columns))
        for part in _ROWS:
            value = self._select.args.get(part)
            if value:
                select.set(part, [each.copy() for each in value] if isinstance(value, list) else value.copy())
        return select

    def same(self, tree: Node) -> str:
        """A text that is equal for equal expressions: `t.a + 1` and `(a+1)`. A parameter of a lambda is no column."""

        def plain(node: Node) -> Node:
            if isinstance(node, exp.Column) and self._needs_no_qualifier(node):
                return exp.column(exp.to_identifier(self.key(node.name), quoted=True))
            if isinstance(node, exp.Identifier):
                name = exp.to_identifier(self.key(node.name), quoted=True)
                return exp.Parameter(this=name) if _is_variable(node) else name
            if isinstance(node, exp.DataType) and node.this == exp.DataType.Type.TIME:
                # sqlglot would write TIMESTAMP.
                return exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=canonical(node))
            return node

        while isinstance(tree, exp.Paren):
            tree = tree.this
        return tree.transform(plain).sql(dialect="spark", normalize_functions="upper", comments=False)

    def _needs_no_qualifier(self, node: exp.Column) -> bool:
        if not node.table:
            return True
        if self.key(node.table) not in self.relations:
            return False  # a field of a struct
        return len(self.relations) == 1 or [*map(self.key, self.columns)].count(self.key(node.name)) == 1


def picked(frame: DataFrame, items: Sequence[Node]) -> DataFrame | None:
    """The frame with these items, without a text that Spark would parse; None if they are not columns of the frame."""
    columns: dict[str, str | Column] = {}
    if len(items) == 1 and items[0] == exp.Star():
        return selected(frame, "*")
    for item in items:
        column = item.this if isinstance(item, exp.Alias) else item
        name = column.name if isinstance(column, exp.Column) and len(column.parts) == 1 else ""
        if name not in frame.columns or item.alias_or_name in columns:
            return None
        columns[item.alias_or_name] = quoted(name)
    if list(columns.items()) == [(name, quoted(name)) for name in frame.columns]:
        return frame
    return selected_as(frame, columns)


def only_relation(select: Node) -> Node | None:
    """The single table or subquery that a SELECT reads; None for joins and for LATERAL VIEW."""
    source = select.args.get("from_")
    relation = source.this if source is not None else None
    if not isinstance(relation, (exp.Table, exp.Subquery)):
        return None
    several = any(relation.args.get(part) for part in ("joins", "laterals", "pivots"))
    return None if several else relation


def is_column(tree: Node) -> bool:
    """Whether a tree is a column without a qualifier, which may also be an alias."""
    return isinstance(tree, exp.Column) and not tree.table and not isinstance(tree.this, exp.Star)


def alias_in(node: Node, aliases: Collection[str], key: Callable[[str], str]) -> TypeGuard[exp.Column]:
    """Whether a column, or the column of a field, is one of the aliases, given by their keys."""
    return isinstance(node, exp.Column) and key(node.parts[0].name) in aliases


def aliased(source: SelectSource, select: Node) -> dict[str, Node]:
    """The items of a SELECT that have an alias, without it, by the keys of their aliases."""
    return {source.key(item.alias): item.this for item in select.expressions if isinstance(item, exp.Alias)}


def distinct_outputs(outputs: Sequence[str]) -> set[str]:
    """The keys that belong to one item. In ORDER BY a name of several items refers to a column below them."""
    return {key for key in outputs if outputs.count(key) == 1}


def output_names(
    source: SelectSource, select: Node, is_ours: Callable[[Node], bool], group: Node | None = None
) -> list[str | None]:
    """The column name of every item of a SELECT in Spark; None for stars and other items with several columns.

    `is_ours` returns whether Spark cannot name a tree because it contains a remote aggregate. `group` is the GROUP BY
    clause without ordinals and aliases.
    """
    aliases = aliased(source, select)
    names: list[str | None] = []
    asked: dict[int, Node] = {}
    lateral: list[int] = []
    for index, item in enumerate(select.expressions):
        if item.is_star or _has_columns(item):
            names.append(None)
        elif isinstance(item, (exp.Alias, exp.Column)):
            value = is_column(item) and item.name.lower() in _VALUES and not source.has(item.name)
            names.append((source.constant_name(item) if value else None) or item.alias_or_name)
        else:
            names.append(canonical(item).replace("`", ""))
            if any(alias_in(node, aliases, source.key) for node in item.walk()):
                lateral.append(index)
            elif not is_ours(item):
                asked[index] = item

    def ask(items: Mapping[int, Node], wanted: Iterable[int], taken: Collection[str] = ()) -> None:
        query = source.selecting([item.copy() for item in items.values()])
        query.set("group", group)
        if select.args.get("windows"):
            query.set("windows", [window.copy() for window in select.args["windows"]])
        found = dict(zip(items, _asked_names(source, query, len(items)), strict=False))
        for index in found.keys() & wanted:
            if source.key(found[index]) not in taken:  # CAST(a AS string) is named a
                names[index] = found[index]

    if asked:
        ask(asked, asked)
    if lateral:
        # Spark also names what an item refers to in another one, whose value does not matter.
        items = {index: _without_ours(item, is_ours) for index, item in enumerate(select.expressions)}
        ask({index: item for index, item in items.items() if item is not None}, lateral, aliases)
    return names


def _without_ours(item: Node, is_ours: Callable[[Node], bool]) -> Node | None:
    """An item for a query of Spark's: null in place of a value that is not Spark's; None if it has several columns."""
    if item.is_star or _has_columns(item):
        return None
    if not is_ours(item):
        return item
    return exp.alias_(exp.null(), item.alias, quoted=True) if isinstance(item, exp.Alias) else None


def keep_names(source: SelectSource, select: Node, changed: Node, group: Node | None = None) -> None:
    """Give the items of a changed SELECT the names that they had."""
    shown = output_names(source, select, lambda _: False, group)
    for item, name, written in zip(list(changed.expressions), shown, select.expressions, strict=True):
        if name is not None and item != written and not isinstance(item, exp.Alias):
            item.replace(exp.alias_(item.copy(), name, quoted=True))


def _is_variable(name: exp.Identifier) -> bool:
    """Whether a name is a parameter of a lambda: that of a column or field is part of another node."""
    parent = name.parent
    return not isinstance(parent, (exp.Column, exp.Alias)) and not (
        isinstance(parent, exp.Dot) and name.arg_key == "expression"
    )


def makes_rows(node: Node) -> bool:
    """Whether a node is a generator, so that the number of rows depends on it."""
    return _has_columns(node) or (isinstance(node, exp.Anonymous) and node.name.lower() in _OF_ONE_COLUMN)


def _has_columns(item: Node) -> bool:
    """Whether an item is a generator with several columns."""
    return isinstance(item, exp.Aliases) or (isinstance(item, exp.Anonymous) and item.name.lower() in _GENERATORS)


def _asked_names(source: SelectSource, query: Node, count: int) -> list[str]:
    """The names that Spark gives to the columns; empty if the items are valid only together with others."""
    try:
        names = source.run(query).columns
    except AnalysisException:
        return []
    return names if len(names) == count else []


def without_rows(select: Node) -> Node:
    """A copy of the SELECT without the parts that `SelectSource` contains."""
    copy = select.copy()
    for part in _ROWS:
        copy.set(part, None)
    return copy


def several_columns(item: Node) -> str:
    """The message of the error for an item with several columns."""
    written = canonical(item)
    if isinstance(item, exp.Anonymous):
        return f"{written} makes several columns: name them, as in {item.name}(...) AS (a, b)"
    if isinstance(item, exp.Dot):
        return f"{written}: .* is for tables and columns: SELECT s.* FROM (SELECT {canonical(item.this)} AS s ...) AS t"  # noqa: S608 - a message
    return f"{written} beside an aggregate: name the columns, as they must be in GROUP BY"
