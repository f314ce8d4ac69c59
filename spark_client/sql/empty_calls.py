"""Calls without arguments of functions whose parameters all have defaults: `rate()` of `rate(day int = 0)`.

Spark passes no rows to a Python function that it calls without arguments. A SQL function around one that is passed a
column stands in its place, under a hidden name: Spark knows one function of a name, and `rate(1)` is the other one.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from spark_client.base.identifiers import quoted
from spark_client.functions.registration import EMPTY
from spark_client.sql.dialect import RemoteSpark
from spark_client.sql.parsing import Text

__all__ = ["with_shown_names", "without_empty_calls"]


def without_empty_calls(text: Text, register: Callable[[str], str | None]) -> Text:
    """The text with a hidden name in the place of each such call's.

    `register` makes the call of a function known to Spark and returns the hidden name; None for any other name.
    """
    try:
        tokens = list(RemoteSpark().tokenize(text.sql))
    except SqlglotError:
        return text  # Spark says what is wrong with it
    parts, done = [], 0
    for index in range(len(tokens) - 2):
        if not _is_empty_call(tokens[index : index + 3]) or (index and tokens[index - 1].token_type is TokenType.DOT):
            continue
        name = register(tokens[index].text)
        if name is not None:
            parts += [text.sql[done : tokens[index].start], quoted(name)]
            done = tokens[index].end + 1
    return replace(text, sql="".join([*parts, text.sql[done:]])) if parts else text


def with_shown_names(frame: DataFrame) -> DataFrame:
    """The result with the names that its columns have from calls, `rate()`, as they were written."""
    return frame.toDF(*(name.replace(EMPTY, "") for name in frame.columns))


def _is_empty_call(tokens: Sequence[Token]) -> bool:
    name, opening, closing = tokens
    is_call = opening.token_type is TokenType.L_PAREN and closing.token_type is TokenType.R_PAREN
    return is_call and name.token_type is not TokenType.STRING
