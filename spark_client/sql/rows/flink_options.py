"""Options of calls as Flink writes them: CONFIG of functions of models, and the hint LOOKUP of lookup joins."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from remote_udf.effective_options import canonical
from remote_udf.errors import InvalidOption
from remote_udf.options import SCALAR_OPTIONS
from spark_client.base.errors import PlanError
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.table_calls import evaluated
from spark_client.sql.text.nodes import Node

__all__ = ["configured", "options_of"]

_ASYNC = "async"
_CONFIG = {"max-concurrent-operations": "buffer-capacity", "output-mode": "output-mode", "timeout": "timeout"}
"""Our options by the names of Flink."""
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
    return options_of(f"{call}: CONFIG", pairs, {**{name: name for name in known}, **_CONFIG})


def options_of(where: str, pairs: Iterable[tuple[str, str]], names: Mapping[str, str]) -> dict[str, str]:
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
        return canonical(given, source=where, known=(SCALAR_OPTIONS,))
    except InvalidOption as error:
        raise PlanError(str(error)) from None
