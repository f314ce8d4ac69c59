"""Names of functions that neither Spark nor the server has: Spark's error does not list remote functions."""

import contextlib
from collections.abc import Iterator

from pyspark.errors import AnalysisException

from spark_client.base.errors import PlanError, UnknownFunction
from spark_client.sql.functions import SqlFunctions
from spark_client.sql.parsing import Text, place_of_token

__all__ = ["naming_unknown"]

_PARAMETERS = {"UNRESOLVED_ROUTINE": "routineName", "UNRESOLVABLE_TABLE_VALUED_FUNCTION": "name"}
"""The conditions of Spark, and the parameter of each that has the name."""


@contextlib.contextmanager
def naming_unknown(functions: SqlFunctions, text: Text) -> Iterator[None]:
    """Raise UnknownFunction with similar remote names if Spark does not find a function that the text calls."""
    try:
        yield
    except AnalysisException as error:
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
