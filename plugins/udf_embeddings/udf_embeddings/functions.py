"""The functions: texts to vectors, and the similarity of two vectors."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import udf_server as udf
from udf_embeddings.model import DIMENSIONS, Model

__all__ = ["cosine_similarity", "embed_text"]


class EmbedText:
    """The meaning of a text as a vector of length one with 256 dimensions; null for a text without a word.

    The dot product of two such vectors is their cosine: 1 for the same direction, about 0 for unrelated texts. The
    model considers words, but not their order.
    """

    model: Model

    def open(self) -> None:
        """Raises FileNotFoundError if the model is not installed."""
        self.model = Model()

    def eval(self, text: pa.StringArray) -> pa.ListArray:
        vectors = self.model.embed(text.to_pylist())
        offsets = pa.array(np.arange(0, vectors.size + 1, DIMENSIONS, dtype=np.int32))
        mask = pa.array(~vectors.any(axis=1))
        return pa.ListArray.from_arrays(offsets, pa.array(vectors.ravel()), mask=mask)


embed_text = udf.scalar(
    name="embed_text", vectorized=True, nulls="skip", parameters="text string", returns="array<float>"
)(EmbedText)


@udf.scalar(vectorized=True, nulls="skip", parameters="a array<float>, b array<float>", returns="double")
def cosine_similarity(a: pa.ListArray, b: pa.ListArray) -> pa.DoubleArray:
    """The cosine of the angle between two vectors, from -1 to 1; null if one of them is zero.

    Raises ValueError for vectors of different lengths, and for elements that are null or not finite.
    """
    lengths = pc.list_value_length(a).to_numpy()
    different = lengths != pc.list_value_length(b).to_numpy()
    if different.any():
        row = int(different.argmax())
        raise ValueError(f"vectors of different lengths: {len(a[row])} and {len(b[row])}")
    left, right = (vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float64) for vectors in (a, b))
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise ValueError("a vector has a value that is null or not finite")
    owners = np.repeat(np.arange(len(lengths)), lengths)
    dot, squares_left, squares_right = (
        np.bincount(owners, product, len(lengths)) for product in (left * right, left * left, right * right)
    )
    lengths_multiplied = np.sqrt(squares_left) * np.sqrt(squares_right)
    zero = lengths_multiplied == 0
    cosines = np.clip(dot / np.where(zero, 1.0, lengths_multiplied), -1.0, 1.0)
    return pa.array(cosines, mask=zero)
