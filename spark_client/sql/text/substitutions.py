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
from spark_client.functions.registered_names import shown
from spark_client.sql.text.dialect import RemoteSpark
from spark_client.sql.text.parsing import Text, in_place, place_of_token

__all__ = ["with_constants", "with_names", "with_shown_names", "with_variables", "without_empty_calls"]

_CALLED_IN_NAME = re.compile(r"\b[A-Za-z_]\w*@\d+(?:\.\d+)*(?=\()")
"""The function in the name that Spark gives to the column of a call."""
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

    def new_name(tokens: Sequence[Token], index: int) -> str | None:
        if not _is_empty_call(tokens, index):
            return None
        try:
            return _quoted(register(tokens[index].text))
        except PlanError as error:
            raise in_place(place_of_token(tokens[index]), error) from None

    changed = _replaced(text.sql, text.dialect, new_name)
    return text if changed == text.sql else replace(text, sql=changed)


def with_names(sql: str, dialect: RemoteSpark, name_of: Callable[[str], str | None], *, columns: bool = False) -> str:
    """Replace the name of each call for which `name_of` returns another one.

    With `columns`, also in names of columns: Spark names the column of a subquery after its call.
    """

    def new_name(tokens: Sequence[Token], index: int) -> str | None:
        token = tokens[index]
        if _is_call(tokens, index):
            return _quoted(name_of(token.text))
        if not columns or token.token_type is not TokenType.IDENTIFIER:
            return None
        name = _CALLED_IN_NAME.sub(lambda found: name_of(found[0]) or found[0], token.text)
        return None if name == token.text else quoted(name)

    return _replaced(sql, dialect, new_name)


def with_constants(sql: str, dialect: RemoteSpark, name_of: Callable[[str], str | None]) -> str:
    """Pass a constant to the function `name_of(f)` for each call `f()` for which there is one."""

    def new_text(tokens: Sequence[Token], index: int) -> str | None:
        if _is_empty_call(tokens, index):
            return _quoted(name_of(tokens[index].text))
        closes = index > 1 and _is_empty_call(tokens, index - 2)
        return "true)" if closes and name_of(tokens[index - 2].text) is not None else None

    return _replaced(sql, dialect, new_text)


def _replaced(sql: str, dialect: RemoteSpark, new_text: Callable[[Sequence[Token], int], str | None]) -> str:
    """Replace tokens by other text. `new_text` gets all tokens and the index of one."""
    try:
        tokens = list(dialect.tokenize(sql))
    except SqlglotError:
        return sql  # Spark reports the error when it runs the text
    parts, done = [], 0
    for index, token in enumerate(tokens):
        if (new := new_text(tokens, index)) is not None:
            parts += [sql[done : token.start], new]
            done = token.end + 1
    return "".join([*parts, sql[done:]])


def _is_call(tokens: Sequence[Token], index: int) -> bool:
    """Whether a token is the name of a function, without a qualifier, that is called."""
    before, after = tokens[index - 1] if index else None, tokens[index + 1 : index + 2]
    if before is not None and (before.token_type is TokenType.DOT or before.text.upper() == "FUNCTION"):
        return False
    is_name = tokens[index].token_type not in (TokenType.STRING, TokenType.OVER)
    return is_name and bool(after) and after[0].token_type is TokenType.L_PAREN


def _is_empty_call(tokens: Sequence[Token], index: int) -> bool:
    """Whether a token is the name of a function that is called without arguments."""
    after = tokens[index + 2 : index + 3]
    return _is_call(tokens, index) and bool(after) and after[0].token_type is TokenType.R_PAREN


def _quoted(name: str | None) -> str | None:
    return None if name is None else quoted(name)


def with_shown_names(frame: DataFrame) -> DataFrame:
    """The result with the original names, such as `rate()`, of the columns that replaced calls determine."""
    names = [*map(shown, frame.columns)]
    return frame if names == frame.columns else frame.toDF(*names)
