"""JoinedRows: an array of structs for each row of the left side of a join, joined as rows.

`t LEFT JOIN LATERAL TABLE(f(t.x)) AS r ON r.a > t.y` becomes

    t CROSS JOIN LATERAL inline_outer(filter(f(t.x), row -> row.a > t.y)) AS r

Spark plans this as one operator over the rows of `t`, also on a stream. A lateral join with LEFT or with a condition it
would plan as an aggregate of the distinct arguments and a join with their rows, which streams do not support.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.sql.rows.scope import Scope
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import error_at

__all__ = ["JoinedRows", "keep_structs_whole", "without_common_parts"]


@dataclass(frozen=True)
class JoinedRows:
    """The rows that a call gives, under the name of a table."""

    scope: Scope
    call: Node
    """Its value is an array of structs."""
    alias: exp.TableAlias
    """The name of the table, perhaps with other names for all of its columns."""
    fields: Sequence[str]
    """The fields of the structs."""
    arguments: Mapping[str, Node]
    """The columns before the fields, whose values do not depend on the struct."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns. Raises PlanError if the alias does not name as many."""
        own = [*self.arguments, *self.fields]
        given = [column.name for column in self.alias.args.get("columns") or ()]
        if given and len(given) != len(own):
            names = f"{self.alias.name}({', '.join(given)})"
            raise PlanError(f"{names} names {len(given)} columns, but there are {len(own)}: {', '.join(own)}")
        return given or own

    def is_own(self, node: Node) -> TypeGuard[exp.Column]:
        """Whether a node is a column of this table. Raises PlanError for a column that may be one."""
        if not isinstance(node, exp.Column):
            return False
        key = self.scope.identifiers.key
        first = node.parts[0].name
        if len(node.parts) == 1 and key(first) in map(key, self.columns):
            name = self.alias.name
            raise error_at(node, f"column {first!r} in ON needs the name of its table, such as {name}.{first}")
        return len(node.parts) > 1 and key(first) == key(self.alias.name)

    def has_own(self, tree: Node) -> bool:
        """Whether a tree depends on a column of this table."""
        return any(self.is_own(node) for node in tree.walk())

    def join(self, on: Sequence[Node], *, outer: bool) -> exp.Join:
        """The join of the left side with the rows for which the conditions hold.

        If `outer`, a row on the left without such rows is joined with nulls. Raises PlanError, with the position in the
        text, for a condition that Spark cannot check in an array.
        """
        # Spark can compute a Python function before an array is filtered, but not while it is.
        before = [part for part in on if not self.has_own(part) and self._apart(part) is not None]
        each = [part for part in on if part not in before]
        rows = self.call
        if each:
            rows = self._call("filter", rows, self._per_row(lambda row: exp.and_(*(self._over(row, x) for x in each))))
        if self.arguments:
            rows = self._call("transform", rows, self._per_row(self._whole))
        if before:
            rows = exp.Case(ifs=[exp.If(this=exp.and_(*(part.copy() for part in before)), true=rows)])
        generator = without_common_parts(self._call("inline_outer" if outer else "inline", rows))
        return exp.Join(this=exp.Lateral(this=generator, view=False, alias=self.alias.copy()), kind="CROSS")

    def _call(self, name: str, *arguments: Node) -> Node:
        return exp.Anonymous(this=name, expressions=[each.copy() for each in arguments])

    def _per_row(self, value: Callable[[Node], Node]) -> Node:
        """The function of an array's element that has this value."""
        row = exp.to_identifier(self.scope.hidden("row"))
        return exp.Lambda(this=value(row), expressions=[row])

    def _whole(self, row: Node) -> Node:
        parts: list[Node] = []
        for name, value in self.arguments.items():
            parts += [exp.Literal.string(name), value]
        for name in self.fields:
            parts += [exp.Literal.string(name), _field(row, name)]
        return self._call("named_struct", *parts)

    def _apart(self, condition: Node) -> Node | None:
        """The first node of a condition that Spark cannot compute for an element of an array."""
        functions = self.scope.functions
        for node in condition.walk():
            if isinstance(node, (exp.Query, exp.Window)):
                return node
            # A function that is not built in may be one in Python.
            if isinstance(node, exp.Anonymous) and not functions.is_built_in(node.name):
                return node
        return None

    def _over(self, row: Node, condition: Node) -> Node:
        """The condition with fields of the row in place of the columns of this table."""
        if (apart := self._apart(condition)) is not None:
            what = f"a call of {apart.name}" if isinstance(apart, exp.Anonymous) else "a subquery or a window"
            raise error_at(apart, f"{what} cannot be in a condition of ON on {self.alias.name}: write it in WHERE")
        keys = [self.scope.key(name) for name in self.columns]
        values = [*map(exp.paren, self.arguments.values()), *(_field(row, name) for name in self.fields)]

        def read(node: Node) -> Node:
            if not self.is_own(node):
                return node
            _, name, *inner = (part.name for part in node.parts)
            if self.scope.key(name) not in keys:
                raise error_at(node, f"{self.alias.name} has no column {name!r}; it has {', '.join(self.columns)}")
            return functools.reduce(_field, inner, values[keys.index(self.scope.key(name))])

        return exp.paren(condition.copy().transform(read), copy=False)


def _field(of: Node, name: str) -> Node:
    return exp.Dot(this=of.copy(), expression=exp.to_identifier(name, quoted=True))


def without_common_parts(tree: Node) -> Node:
    """The tree, which is changed, without BETWEEN and nullif inside.

    Spark computes what they use twice in an operator of its own, which it refuses below a lateral join.
    """
    for node in reversed(list(tree.find_all(exp.Between, exp.Anonymous))):  # the inner ones first
        if isinstance(node, exp.Between):
            value = exp.paren(node.this)
            low = exp.GTE(this=value, expression=exp.paren(node.args["low"]))
            high = exp.LTE(this=value.copy(), expression=exp.paren(node.args["high"]))
            node.replace(exp.paren(exp.and_(low, high)))
        elif node.name.lower() == "nullif" and len(node.expressions) == 2:
            value, other = map(exp.paren, node.expressions)
            same = exp.EQ(this=value, expression=other)
            node.replace(exp.If(this=same, true=exp.null(), false=value.copy()))
    return tree


def keep_structs_whole(generator: Node, key: Callable[[str], str]) -> None:
    """Change a generator in FROM such that it uses as a whole each struct of which it uses several fields.

    Such as `l, LATERAL inline(f(l.s.a, l.s.b, l.c))`. Spark replaces the struct below such a generator by its fields.
    It has noted by position which columns nobody needs above the generator, and the positions of those after the struct
    change, so it drops other columns and fails. It leaves a struct alone that is also used as a whole, so one of the
    fields is written as `element_at(array(l.s), 1).a`, which the optimizer does not simplify. `key` is the same for
    names that are one.
    """
    # A name of any table of the query may be one that is visible here.
    tables = generator.root().find_all(exp.Table, exp.TableAlias)
    names = {key(each.name) for each in tables}
    fields: dict[str, set[tuple[str, ...]]] = {}
    first: dict[tuple[str, ...], exp.Column] = {}
    for node in generator.find_all(exp.Column):
        parts = tuple(key(part.name) for part in node.parts)
        places = [place for place, part in enumerate(parts) if part in names]
        # A name after the first one is that of a table with its database, or a field: it is not known which.
        if places and places[0] > 0:
            continue
        root = 2 if places else 1
        if len(parts) > root:
            fields.setdefault(parts[root - 1], set()).add(parts[root:])
            first.setdefault(parts[:root], node)
    for struct, node in first.items():
        if len(fields[struct[-1]]) > 1:
            _use_whole(node, len(struct))


def _use_whole(node: exp.Column, root: int) -> None:
    parts = [part.copy() for part in node.parts]
    struct = exp.Column(**dict(zip(("this", "table"), reversed(parts[:root]), strict=False)))
    read: Node = exp.Anonymous(this="element_at", expressions=[exp.Array(expressions=[struct]), exp.Literal.number(1)])
    for field in parts[root:]:
        read = exp.Dot(this=read, expression=field)
    node.replace(read)
