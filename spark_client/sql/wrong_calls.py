"""Calls that no function fits: their names are unknown, or the number of their arguments is wrong.

Spark's error for an unknown name does not list remote functions, and a wrong number fails only when the job runs.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence

from pyspark.errors import AnalysisException
from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from remote_udf.errors import StreamError
from spark_client.base.errors import PlanError, UnknownFunction
from spark_client.sql.rows.calls import is_scalar
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.scope import Scope
from spark_client.sql.tables.window_functions import WINDOW_FUNCTIONS
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import Text, error_at, place_of_token

__all__ = ["naming_unknown", "with_right_counts"]

_PARAMETERS = {"UNRESOLVED_ROUTINE": "routineName", "UNRESOLVABLE_TABLE_VALUED_FUNCTION": "name"}
"""The conditions of Spark, and the parameter of each that has the name."""
_TABLE = "INVALID_SQL_SYNTAX.INVALID_TABLE_FUNCTION_IDENTIFIER_ARGUMENT_MISSING_PARENTHESES"
"""The condition for f(TABLE t), which only remote functions take."""
_SYNTAX = ("PARSE_SYNTAX_ERROR", "'('")
"""The condition for TABLE(f(TABLE t)), and what Spark did not expect there."""

_OF_PLUGINS = {"FROM_CHANGELOG": "udf-process", "TO_CHANGELOG": "udf-process"}
"""Built-in functions of Flink, and the plugin that has each of them."""
_PART_OF_WINDOW = re.compile("_(START|END|ROWTIME|PROCTIME)$")
"""The functions beside Flink's group windows, such as TUMBLE_START."""
_OTHER_CALL = ("WRONG_NUM_ARGS", "NOT_A_TABLE_FUNCTION")
"""Conditions for a call that a function of Spark's does not take, or what they begin with."""
_SEVERAL = (exp.Star, exp.Distinct)
"""These represent a number of arguments that the text does not show."""


@contextlib.contextmanager
def naming_unknown(functions: SqlFunctions, text: Text) -> Iterator[None]:
    """Raise UnknownFunction with similar remote names if Spark does not find a function that the text calls.

    Raises PlanError if Spark finds its own function in place of a remote one that the call would fit, and for a window
    function that is called as a function of a row.
    """
    try:
        yield
    except AnalysisException as error:
        said, condition = error.getMessageParameters() or {}, error.getCondition() or ""
        called = _called_with_table(text.tokens)
        syntax = (condition, said.get("error")) == _SYNTAX
        if called is not None and (condition == _TABLE or (syntax and _is_unknown(called, functions))):
            _refuse_hidden(functions, text, called.text)
            near = functions.functions.near(called.text, WINDOW_FUNCTIONS)
            plugin = _OF_PLUGINS.get(called.text.upper())
            todo = f"install the plugin {plugin}" if plugin else "a table function of Spark's own takes TABLE(t)"
            raise UnknownFunction(
                f"{place_of_token(called)}the server has no function {called.text!r} {near}; {todo}"
            ) from None
        name = said.get(_PARAMETERS.get(condition, ""), "").strip("`")
        if name.upper() == "TABLE":
            name = _called_in_table(text.tokens) or name
        if condition.startswith(_OTHER_CALL):
            _refuse_hidden(functions, text, said.get("functionName", "").strip("`"), error)
        _refuse_hidden(functions, text, name, error)
        token = _named(text, name)
        window = _PART_OF_WINDOW.sub("", name.upper())
        if token is not None and window in WINDOW_FUNCTIONS:
            raise PlanError(
                f"{place_of_token(token)}{token.text} is no function of a row: write FROM TABLE({window}(TABLE t, "
                "DESCRIPTOR(ts), ...)), and GROUP BY window_start, window_end for an aggregate"
            ) from None
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


def _refuse_hidden(functions: SqlFunctions, text: Text, name: str, error: AnalysisException | None = None) -> None:
    """Raise PlanError if a name means a function of Spark's, and a remote one has the same name."""
    hidden = next((spec.name for spec in functions.functions if spec.name.casefold() == name.casefold()), None)
    if hidden is not None and functions.remote(name) is None:
        token = _named(text, name)
        place = place_of_token(token) if token is not None else ""
        cause = f": {str(error).splitlines()[0]}" if error is not None else ""
        raise PlanError(
            f"{place}{name} is Spark's own function here, which takes precedence; to call the remote function, write "
            f"`{functions.functions.find(hidden).key}`{cause}"
        ) from None


def _named(text: Text, name: str) -> Token | None:
    """The first token with a name."""
    return next((token for token in text.tokens if token.text.casefold() == name.casefold()), None)


def _called_in_table(tokens: Sequence[Token]) -> str | None:
    """The name of the first function in TABLE(f(...))."""
    for table, opening, name in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if table.token_type is TokenType.TABLE and opening.token_type is TokenType.L_PAREN:
            return name.text
    return None


def _is_unknown(called: Token, functions: SqlFunctions) -> bool:
    known = called.text.upper() in WINDOW_FUNCTIONS or functions.kind(called.text) is not None
    return called.token_type is TokenType.VAR and not known


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


def with_right_counts(scope: Scope, tree: Node) -> Node:
    """Return the tree. Raises PlanError, with the position and the signature, for a wrong number of arguments."""
    for call in tree.find_all(exp.Anonymous):
        if isinstance(call.parent, exp.Hint) or not is_scalar(call, scope.functions):
            continue
        if any(argument.is_star or isinstance(argument, _SEVERAL) for argument in call.expressions):
            continue
        try:
            scope.functions.spec(call.name).check_count(len(call.expressions))
        except StreamError as error:
            raise error_at(call, error.message) from None
    return tree
