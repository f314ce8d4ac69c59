"""Options of calls as Flink writes them: CONFIG of functions of models, and the hint LOOKUP of lookup joins."""

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa
from sqlglot import exp

from remote_udf import effective_options
from remote_udf.errors import InvalidOption
from remote_udf.options import SCALAR_OPTIONS
from spark_client.base.errors import PlanError
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.table_calls import evaluated
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import error_at, in_place, place_of
from spark_client.sql.text.writers import canonical

__all__ = ["LookupHints", "configured"]

_ASYNC = "async"
_OF_CONFIG = {"max-concurrent-operations": "buffer-capacity", "output-mode": "output-mode", "timeout": "timeout"}
_OF_HINTS = {
    "capacity": "buffer-capacity", "output-mode": "output-mode", "timeout": "timeout", "fixed-delay": "fixed-delay",
    "max-attempts": "max-attempts", "retry-strategy": "retry-strategy",
}  # fmt: skip
"""Our options by the names of Flink, in each of the two."""
_PREDICATE, _MISS = "retry-predicate", "lookup_miss"
_SWITCH = {"true": True, "false": False}


def configured(scope: Scope, call: str, value: Node | None, known: Iterable[str] = ()) -> dict[str, str]:
    """The options that the CONFIG of a call sets, MAP['async', 'true', 'timeout', '30 s'].

    Args:
        scope: The scope of the statement.
        call: The name of the called function.
        value: The argument; None if it is not given.
        known: Options that are accepted besides those of Flink.

    Raises:
        PlanError: The argument is no map of texts, or has an unknown key or an invalid value.
    """
    if value is None:
        return {}
    pairs = evaluated(scope, value, pa.map_(pa.string(), pa.string()))
    if not isinstance(pairs, list) or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise PlanError(f"{call}: CONFIG is a map of texts, MAP['key', 'value', ...]")
    return _options_of(f"{call}: CONFIG", pairs, {**{name: name for name in known}, **_OF_CONFIG})


def _options_of(where: str, pairs: Iterable[tuple[str, str]], names: Mapping[str, str]) -> dict[str, str]:
    """Our options, of texts by the `names` of Flink. `async` set to false means one row at a time. Raises PlanError."""
    given: dict[str, str] = {}
    for key, text in pairs:
        name, switch = key.strip().lower(), _SWITCH.get(text.strip().lower())
        if name != _ASYNC and name not in names:
            raise PlanError(f"{where} has no option {key!r}; there are {', '.join(sorted({_ASYNC, *names}))}")
        if name == _ASYNC and switch is None:
            raise PlanError(f"{where}: 'async' is {text!r}, not 'true' or 'false'")
        if name != _ASYNC:
            given[names[name]] = text
        elif not switch:
            given.setdefault("buffer-capacity", "1")
    try:
        return effective_options.canonical(given, source=where, known=(SCALAR_OPTIONS,))
    except InvalidOption as error:
        raise PlanError(str(error)) from None


class LookupHints:
    """The hints of all SELECTs in a tree, /*+ LOOKUP('table'='c', 'async'='true', 'capacity'='20') */.

    Raises PlanError with the position of the SELECT.
    """

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
    options = _options_of("LOOKUP", given.items(), _OF_HINTS)
    if predicate is not None:
        options["retry-empty"] = "true"
    if "max-attempts" in options:
        options["max-attempts"] = str(int(options["max-attempts"]) + 1)
    return {**options, "table": table}
