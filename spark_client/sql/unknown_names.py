"""Names of functions that neither Spark nor the server has: Spark's error does not list remote functions."""

import contextlib
from collections.abc import Iterator, Sequence

from pyspark.errors import AnalysisException
from sqlglot.tokens import Token, TokenType

from spark_client.base.errors import PlanError, UnknownFunction
from spark_client.sql.functions import SqlFunctions
from spark_client.sql.parsing import Text, place_of_token

__all__ = ["naming_unknown"]

_PARAMETERS = {"UNRESOLVED_ROUTINE": "routineName", "UNRESOLVABLE_TABLE_VALUED_FUNCTION": "name"}
"""The conditions of Spark, and the parameter of each that has the name."""
_TABLE = "INVALID_SQL_SYNTAX.INVALID_TABLE_FUNCTION_IDENTIFIER_ARGUMENT_MISSING_PARENTHESES"
"""The condition for f(TABLE t), which only remote functions take."""


@contextlib.contextmanager
def naming_unknown(functions: SqlFunctions, text: Text) -> Iterator[None]:
    """Raise UnknownFunction with similar remote names if Spark does not find a function that the text calls."""
    try:
        yield
    except AnalysisException as error:
        if error.getCondition() == _TABLE and (called := _called_with_table(text.tokens)) is not None:
            same = next((spec.name for spec in functions.functions if spec.name == called.text.casefold()), None)
            if same is not None:
                raise PlanError(
                    f"{place_of_token(called)}{called.text!r} is a function of Spark's own, which takes precedence "
                    f"over that of the server: write its version, `{functions.functions.find(same).key}`"
                ) from None
            raise UnknownFunction(
                f"{place_of_token(called)}the server has no function {called.text!r} "
                f"{functions.functions.near(called.text)}; a table function of Spark's own takes TABLE(t)"
            ) from None
        parameter = _PARAMETERS.get(error.getCondition() or "")
        name = (error.getMessageParameters() or {}).get(parameter or "", "").strip("`")
        token = next((token for token in text.tokens if token.text.casefold() == name.casefold()), None)
        if token is None and functions.kind(name) is not None:
            raise PlanError(
                f"Spark runs this statement, which calls {name!r}, and does not know this remote function: "
                f"call it in the text of remote.sql"
            ) from None
        if token is None:
            raise
        near = functions.functions.near(name)
        raise UnknownFunction(
            f"{place_of_token(token)}neither Spark nor the server has a function {name!r} {near}"
        ) from None


def _called_with_table(tokens: Sequence[Token]) -> Token | None:
    """The name of the first function that is called with TABLE t."""
    names: list[Token] = []  # before each parenthesis that is open
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.token_type is TokenType.L_PAREN:
            names.append(before)
        elif token.token_type is TokenType.R_PAREN and names:
            names.pop()
        elif token.token_type is TokenType.TABLE and after.token_type is not TokenType.L_PAREN and names:
            return names[-1]
    return None
