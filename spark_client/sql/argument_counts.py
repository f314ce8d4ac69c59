"""Refuses calls of scalar functions with a wrong number of arguments, which otherwise fail when the job runs."""

from sqlglot import exp

from remote_udf.errors import StreamError
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import error_at

__all__ = ["require_counts"]

_SEVERAL = (exp.Star, exp.Distinct)
"""These represent a number of arguments that the text does not show."""


def require_counts(functions: SqlFunctions, tree: Node) -> None:
    """Raises PlanError, with the position in the text and the signature."""
    for call in tree.find_all(exp.Anonymous):
        qualified = isinstance(call.parent, exp.Dot) and call.arg_key == "expression"
        if qualified or isinstance(call.parent, exp.Hint) or not functions.is_remote_scalar(call.name):
            continue
        if any(argument.is_star or isinstance(argument, _SEVERAL) for argument in call.expressions):
            continue
        try:
            functions.spec(call.name).check_count(len(call.expressions))
        except StreamError as error:
            raise error_at(call, error.message) from None
