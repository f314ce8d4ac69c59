"""The plugin `http`: lookups at one HTTP service."""

import udf_server as udf
from udf_http.functions import http_get, http_get_json

__all__ = ["http_get", "http_get_json", "udf_functions"]


@udf.hookimpl
def udf_functions() -> list[udf.Function]:
    """The functions of this plugin."""
    return [http_get, http_get_json]
