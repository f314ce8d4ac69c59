"""A real, small model as two functions: called for each batch of each task, and for the rows of all tasks together."""

import numpy as np
import pyarrow as pa

import udf_server as udf
from udf_embeddings.model import Model

__all__ = ["kind_per_batch", "kind_shared"]

KINDS = ("a large international airport", "a small municipal airfield", "a base of the air force", "a seaplane port")


class Kind:
    """The kind of an airport that its name is most similar to."""

    def open(self) -> None:
        self.model = Model()
        self.kinds = self.model.embed(KINDS)

    def eval(self, name: pa.StringArray) -> pa.StringArray:
        nearest = np.argmax(self.model.embed(name.to_pylist()) @ self.kinds.T, axis=1)
        return pa.array([KINDS[kind] for kind in nearest])


kind_per_batch = udf.scalar(vectorized=True, name="kind_per_batch", nulls="skip")(Kind)
kind_shared = udf.scalar(
    vectorized=True, name="kind_shared", nulls="skip", batch_rows=512, max_queue_delay="10 ms", instances=1
)(Kind)
