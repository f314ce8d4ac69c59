"""The plugin `onnx`: types of files, by a model that a dependency ships; an example of a local model."""

import udf_server as udf
from udf_onnx.functions import file_type

__all__ = ["file_type", "udf_functions"]


@udf.hookimpl
def udf_functions() -> list[udf.Function]:
    """The functions of this plugin."""
    return [file_type]
