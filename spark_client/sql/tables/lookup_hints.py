"""The hint of lookup joins: `SELECT /*+ LOOKUP('table'='c', 'async'='true', 'capacity'='20') */ ...`."""

from collections.abc import Callable

from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.sql.rows.flink_options import options_of
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import error_at, in_place, place_of
from spark_client.sql.text.writers import canonical

__all__ = ["LookupHints"]

_OPTIONS = {
    "capacity": "buffer-capacity", "output-mode": "output-mode", "timeout": "timeout", "fixed-delay": "fixed-delay",
    "max-attempts": "max-attempts", "retry-strategy": "retry-strategy",
}  # fmt: skip
"""Our options by the names of Flink."""
_PREDICATE, _MISS = "retry-predicate", "lookup_miss"


class LookupHints:
    """The hints of all SELECTs in a tree. Raises PlanError with the position of the SELECT."""

    def __init__(self, tree: Node, key: Callable[[str], str]) -> None:
        """Read the hints.

        Args:
            tree: A statement, which `remove` changes.
            key: Two names of tables are the same if their keys are equal.
        """
        self._key = key
        self._found: list[tuple[exp.Select, Node, dict[str, str]]] = []
        self._used: set[int] = set()
        for select in tree.find_all(exp.Select):
            hint = select.args.get("hint")
            for each in hint.expressions if hint is not None else ():
                if isinstance(each, exp.Anonymous) and each.name.upper() == "LOOKUP":
                    try:
                        self._found.append((select, each, _read(each)))
                    except PlanError as error:
                        raise in_place(place_of(select), f"hint LOOKUP: {error}") from None

    def of_table(self, table: exp.Table) -> dict[str, str]:
        """The options of calls that hints set for a looked-up table, by its name or its alias."""
        select = table.find_ancestor(exp.Select)
        options: dict[str, str] = {}
        for of_select, hint, told in self._found:
            if of_select is select and self._key(told["table"]) in map(self._key, (table.name, table.alias_or_name)):
                self._used.add(id(hint))
                options |= told
        options.pop("table", None)
        return options

    def remove(self) -> None:
        """Remove the hints from the tree, because Spark does not know them."""
        for select, hint, told in self._found:
            if id(hint) not in self._used:
                raise error_at(select, f"hint LOOKUP: no lookup join of this SELECT is with a table {told['table']!r}")
            hint.pop()
            if not select.args["hint"].expressions:
                select.set("hint", None)


def _read(hint: exp.Anonymous) -> dict[str, str]:
    """The table and the options of a hint. As in Flink, `max-attempts` counts the calls after the first one.

    Flink retries a row that is not found; errors are retried here without the predicate, too.
    """
    given: dict[str, str] = {}
    for part in hint.expressions:
        if not isinstance(part, exp.EQ) or not part.this.is_string or not part.expression.is_string:
            raise PlanError(f"{canonical(part)} is not 'option'='value'")
        given[part.this.name] = part.expression.name
    table = given.pop("table", None)
    if table is None:
        raise PlanError("there is no 'table', which is the name or the alias of the looked-up table")
    predicate = given.pop(_PREDICATE, None)
    if predicate not in (None, _MISS):
        raise PlanError(f"{_PREDICATE!r} is {predicate!r}, which is not known; the only predicate is {_MISS!r}")
    options = options_of("LOOKUP", given.items(), _OPTIONS)
    if predicate is not None:
        options["retry-empty"] = "true"
    if "max-attempts" in options:
        options["max-attempts"] = str(int(options["max-attempts"]) + 1)
    return {**options, "table": table}
