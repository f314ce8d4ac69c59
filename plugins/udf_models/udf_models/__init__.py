"""The plugin `models`: functions that call the models in the operator's file."""

import os

import udf_server as udf
from udf_models.settings import ModelsSettings

__all__ = ["udf_functions"]


@udf.hookimpl
def udf_functions() -> list[udf.Function]:
    """The functions of the models in the file UDF_MODELS_FILE; none if it is not set.

    Raises InvalidSetting or InvalidModels.
    """
    if not os.environ.get("UDF_MODELS_FILE"):
        return []
    from udf_models.functions import functions_of  # noqa: PLC0415 - aiohttp takes a while, for servers that need it

    return functions_of(ModelsSettings.from_environment())
