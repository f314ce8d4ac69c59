"""What other packages add to SQL: functions in FROM and statements. A package is imported when a text uses it.

A line here is all that reading and planning SQL knows of models and of Parquet files.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pyspark.sql import DataFrame

from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.table_calls import call_of_relation
from spark_client.sql.tables.window_functions import is_window_call, put_windows
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import Text

__all__ = ["TABLE_FUNCTIONS", "TableFunction", "later", "put_of", "result_of_statement"]


def later(path: str) -> Callable[..., Any]:
    """The function `module:name`, whose module is imported when it is first called."""
    module, name = path.split(":")

    def call(*given: object, **named: object) -> Any:
        return getattr(import_module(module), name)(*given, **named)

    return call


@dataclass(frozen=True)
class TableFunction:
    """A function in FROM."""

    put: Callable[[Scope, Node], None]
    """Replaces an item of FROM that is a call. Raises PlanError with the position in the text."""
    reads_all: bool = True
    """Whether the function reads all columns of a table, so that none of them is unused."""


TABLE_FUNCTIONS: Mapping[str, TableFunction] = {
    "ML_PREDICT": TableFunction(later("spark_client.sql.models.predictions:put_prediction")),
    "VECTOR_SEARCH": TableFunction(later("spark_client.sql.models.vector_search:put_search")),
    "REMOTE_PARQUET": TableFunction(later("spark_client.sql.parquet.parquet_tables:put_parquet"), reads_all=False),
}
"""By the upper-case name, without the window functions."""

_OF_MODELS = later("spark_client.sql.models.model_statements:run_model_statement")
STATEMENTS: Mapping[str, Callable[..., DataFrame | None]] = {"MODEL": _OF_MODELS, "MODELS": _OF_MODELS}
"""By one of the first words of a text. They return None for a text that is another statement."""
_FIRST_WORDS = 5
"""The length of the longest beginning: CREATE OR REPLACE TEMPORARY MODEL."""
_WORD = re.compile(r"\w+")


def put_of(node: Node) -> Callable[[Scope, Node], None] | None:
    """What replaces an item of FROM that is a table function of SQL; None for any other node."""
    call = call_of_relation(node)
    if call is None:
        return None
    if is_window_call(call):
        return put_windows
    found = TABLE_FUNCTIONS.get(call.name.upper())
    return None if found is None else found.put


def result_of_statement(functions: SqlFunctions, text: Text, *, explained: bool) -> DataFrame | None:
    """Run a statement that another package adds, and return its rows; None for any other text.

    Raises PlanError with the position in the text, or if the text is to be explained and has no plan.
    """
    # After SHOW, the tokenizer returns the rest as one text.
    words = _WORD.findall(" ".join(token.text for token in text.tokens[:_FIRST_WORDS]).upper())
    run = next((STATEMENTS[word] for word in words[:_FIRST_WORDS] if word in STATEMENTS), None)
    return None if run is None else run(functions, text, explained=explained)
