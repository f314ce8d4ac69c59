"""What side buildings add to SQL: functions in FROM and statements. A building is imported when a text uses it.

A line here is all that reading and planning SQL knows of models and of Parquet files.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pyspark.sql import DataFrame
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.table_calls import call_of_relation
from spark_client.sql.tables.window_functions import is_window_call, put_windows
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import Text, in_place, place_of

__all__ = ["TABLE_FUNCTIONS", "TableFunction", "is_table_function", "later", "put_in_from", "result_of_statement"]


def later(path: str) -> Callable[..., Any]:
    """The function `module:name`, whose module is imported when it is first called."""
    module, name = path.split(":")

    def call(*given: object, **named: object) -> Any:
        return getattr(import_module(module), name)(*given, **named)

    return call


@dataclass(frozen=True)
class TableFunction:
    """A function in FROM."""

    put: Callable[[Scope, Node, exp.Anonymous], None]
    """Replaces an item of FROM that is a call."""
    reads_all: bool = True
    """Whether the function reads all columns of a table, so that none of them is unused."""


TABLE_FUNCTIONS: Mapping[str, TableFunction] = {
    "ML_EVALUATE": TableFunction(later("spark_client.models.model_calls:put_evaluation")),
    "ML_PREDICT": TableFunction(later("spark_client.models.model_calls:put_prediction")),
    "VECTOR_SEARCH": TableFunction(later("spark_client.models.vector_search:put_search")),
    "REMOTE_PARQUET": TableFunction(later("spark_client.parquet.reading:put_parquet"), reads_all=False),
}
"""By the upper-case name, without the window functions."""

_OF_MODELS = later("spark_client.models.model_statements:run_model_statement")
STATEMENTS: Mapping[str, Callable[..., DataFrame | None]] = {"MODEL": _OF_MODELS, "MODELS": _OF_MODELS}
"""By one of the first words of a text. They return None for a text that is another statement."""
_FIRST_WORDS = 5
"""The length of the longest beginning: CREATE OR REPLACE TEMPORARY MODEL."""
_WORD = re.compile(r"\w+")


def is_table_function(node: Node) -> bool:
    """Whether an item of FROM is a call of a window function or of one of these functions."""
    call = call_of_relation(node)
    return call is not None and (is_window_call(call) or call.name.upper() in TABLE_FUNCTIONS)


def put_in_from(scope: Scope, node: Node) -> None:
    """Replace an item of FROM that is such a call. Raises PlanError with the position in the text."""
    call = call_of_relation(node)
    assert call is not None
    put = put_windows if is_window_call(call) else TABLE_FUNCTIONS[call.name.upper()].put
    try:
        put(scope, node, call)
    except PlanError as error:
        raise in_place(place_of(call), error) from None


def result_of_statement(functions: SqlFunctions, text: Text, *, explained: bool) -> DataFrame | None:
    """Run a statement that another package adds, and return its rows; None for any other text.

    Raises PlanError with the position in the text, or if the text is to be explained and has no plan.
    """
    # After SHOW, the tokenizer returns the rest as one text.
    words = _WORD.findall(" ".join(token.text for token in text.tokens[:_FIRST_WORDS]).upper())
    run = next((STATEMENTS[word] for word in words[:_FIRST_WORDS] if word in STATEMENTS), None)
    return None if run is None else run(functions, text, explained=explained)
