"""Generators that use several fields of one struct: `l, LATERAL inline(f(l.s.a, l.s.b, l.c))`.

Spark replaces the struct below such a generator by its fields. It has noted by position which columns nobody needs
above the generator, and the positions of those after the struct change, so it drops other columns and fails. It leaves
a struct alone that is also used as a whole, so one of the fields is written as `element_at(array(l.s), 1).a`, which
the optimizer does not simplify.
"""

from collections.abc import Callable

from sqlglot import exp

from spark_client.sql.text.nodes import Node

__all__ = ["keep_structs_whole"]


def keep_structs_whole(generator: Node, key: Callable[[str], str]) -> None:
    """Change a generator in FROM such that it uses as a whole each struct of which it uses several fields.

    `key` is the same for names that are one.
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
