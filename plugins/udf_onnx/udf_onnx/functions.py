"""The function `file_type`: a class with an object, and so a model, for each of its calls at once."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

import udf_server as udf
from udf_server.settings import from_environment, setting

if TYPE_CHECKING:
    from udf_onnx.magika import FileTypes

__all__ = ["OnnxSettings", "file_type"]

RESULT = pa.struct([("label", pa.string()), ("mime_type", pa.string()), ("score", pa.float64())])


@dataclass(frozen=True)
class OnnxSettings:
    """Settings of the plugin, from environment variables with the prefix UDF_ONNX_."""

    threads: int = setting("threads with which one instance computes on the CPU", default=1)


class FileType:
    """The type of a file by its contents: a label such as `python`, its MIME type, and the model's score, 0 to 1."""

    model: "FileTypes"

    def open(self, context: udf.FunctionContext) -> None:
        """Raises RuntimeError if the device cannot be used, InvalidSetting, and FileNotFoundError without the model."""
        from udf_onnx.magika import FileTypes  # noqa: PLC0415 - ONNX Runtime takes a while, for servers that need it

        self.model = FileTypes(context.device, from_environment(OnnxSettings, "UDF_ONNX_").threads)

    def eval(self, content: pa.BinaryArray) -> pa.StructArray:
        from udf_onnx.magika import BLOCK  # noqa: PLC0415 - as above

        begins, ends = pc.binary_slice(content, 0, BLOCK), pc.binary_slice(content, -BLOCK)
        return pa.array(self.model.of(begins.to_pylist(), ends.to_pylist()), RESULT)


# The number of instances is the operator's: a declaration would override it.
file_type = udf.scalar(
    name="file_type", vectorized=True, nulls="skip", parameters="content binary", returns=RESULT,
    batch_rows=16, max_queue_delay="5 ms",
)(FileType)  # fmt: skip
