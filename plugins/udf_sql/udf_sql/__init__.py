"""The plugin `sql`: a function for each statement in the operator's file."""

import os

import udf_server as udf
from udf_sql.settings import SqlSettings

__all__ = ["udf_functions"]


@udf.hookimpl
def udf_functions() -> list[udf.Function]:
    """The functions of the file UDF_SQL_STATEMENTS; none if it is not set.

    Raises InvalidSetting or InvalidStatement.
    """
    if not os.environ.get("UDF_SQL_STATEMENTS"):
        return []
    from udf_sql.functions import functions_of  # noqa: PLC0415 - SQLAlchemy takes a while, for servers that need it

    return functions_of(SqlSettings.from_environment())
