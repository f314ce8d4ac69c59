"""The plugin `embeddings`: texts as vectors, by a model that a dependency ships."""

import udf_server as udf
from udf_embeddings.functions import cosine_similarity, embed_text

__all__ = ["cosine_similarity", "embed_text", "udf_functions"]


@udf.hookimpl
def udf_functions() -> list[udf.Function]:
    """The functions of this plugin."""
    return [cosine_similarity, embed_text]
