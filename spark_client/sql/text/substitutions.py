"""What is replaced in a text before it is read: variables, and calls of remote functions without arguments.

Variables, `${name}`, are replaced as Spark does in any text before it parses it. Calls without arguments are those of
functions whose parameters all have defaults, `rate()` of `rate(day int = 0)`. Spark passes no rows to a Python function
that it calls without arguments. Such a call is therefore replaced by a SQL function that passes a column to the Python
function. It has a hidden name, because Spark allows one function per name, and `rate(1)` calls the other one.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import quoted
from spark_client.functions.registration import EMPTY
from spark_client.sql.text.parsing import Text, in_place, place_of_token

__all__ = ["with_shown_names", "with_variables", "without_empty_calls"]

_VARIABLE = re.compile(r"\$\{(?:\w+:)?[^\s}']+\}")


def with_variables(spark: SparkSession, text: Text) -> Text:
    """The text with the values that Spark has for its variables: settings, and the environment of the driver's JVM.

    A variable that has none stays, and so do all if a value has a quote.
    """
    found = list(dict.fromkeys(_VARIABLE.findall(text.sql)))
    if not found or text.fields:
        return text
    raw = "" if text.settings.escaped else "r"
    try:
        row = spark.sql("SELECT " + ", ".join(f"{raw}'{each}'" for each in found)).first()
    except PySparkException:
        return text
    if row is None or len(row) != len(found):
        return text
    values = dict(zip(found, row, strict=True))
    return replace(text, sql=_VARIABLE.sub(lambda each: str(values[each[0]]), text.sql))


def without_empty_calls(text: Text, register: Callable[[str], str | None]) -> Text:
    """Replace the name of each such call by a hidden name.

    `register` registers the call with Spark and returns the hidden name; None if the name is no remote scalar function.
    Raises PlanError, with the position in the text, for a call that needs arguments.
    """
    try:
        tokens = list(text.dialect.tokenize(text.sql))
    except SqlglotError:
        return text  # Spark reports the error when it runs the text
    parts, done = [], 0
    for index in range(len(tokens) - 2):
        before = tokens[index - 1] if index else None
        if before is not None and (before.token_type is TokenType.DOT or before.text.upper() == "FUNCTION"):
            continue
        if not _is_empty_call(tokens[index : index + 3]):
            continue
        try:
            name = register(tokens[index].text)
        except PlanError as error:
            raise in_place(place_of_token(tokens[index]), error) from None
        if name is not None:
            parts += [text.sql[done : tokens[index].start], quoted(name)]
            done = tokens[index].end + 1
    return replace(text, sql="".join([*parts, text.sql[done:]])) if parts else text


def with_shown_names(frame: DataFrame) -> DataFrame:
    """The result with the original names, such as `rate()`, of the columns that replaced calls determine."""
    return frame.toDF(*(name.replace(EMPTY, "") for name in frame.columns))


def _is_empty_call(tokens: Sequence[Token]) -> bool:
    name, opening, closing = tokens
    is_call = opening.token_type is TokenType.L_PAREN and closing.token_type is TokenType.R_PAREN
    return is_call and name.token_type not in (TokenType.STRING, TokenType.OVER)
