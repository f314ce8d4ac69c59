"""Model: texts to vectors, the mean of their tokens' vectors, with the files that the package wordllama ships.

The code of wordllama is not used: importing it configures the process's logging, it may download missing files, and for
one long text it allocates memory for 64 texts of that length.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file
from tokenizers import Tokenizer

__all__ = ["DIMENSIONS", "Model"]

DIMENSIONS = 256
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
WEIGHTS = "weights/l2_supercat_256.safetensors"
TEXTS = 64
"""Texts that are tokenized together."""
TOKENS = 1 << 16
"""Tokens whose vectors are looked up together: 64 MB."""

Vectors = npt.NDArray[np.float32]


class Model:
    """WordLlama's l2_supercat, 256 dimensions: Llama 2's tokens, trained for similarity (D. L. Miller, 2024)."""

    def __init__(self) -> None:
        """Raises FileNotFoundError if the package has no such files. Loading takes 0.3 s and 50 MB."""
        spec = importlib.util.find_spec("wordllama")
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError("the package wordllama, which has the model, is not installed")
        folder = Path(spec.submodule_search_locations[0])
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokens: Vectors = load_file(folder / WEIGHTS)["embedding.weight"].astype(np.float32)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Returns a row of length one for each text, in order; zeros for a text without a word.

        Thread-safe.
        """
        vectors = np.zeros((len(texts), DIMENSIONS), np.float32)
        for start in range(0, len(texts), TEXTS):
            part = list(texts[start : start + TEXTS])
            encoded = self._tokenizer.encode_batch_fast(part, add_special_tokens=False)
            for place, (text, encoding) in enumerate(zip(part, encoded, strict=True), start):
                if text.strip():
                    self._add_up(encoding.ids, vectors[place])
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.divide(vectors, lengths, out=vectors, where=lengths > 0)

    def _add_up(self, tokens: list[int], vector: npt.NDArray[np.float32]) -> None:
        """Adds the vectors of all tokens to `vector`; the sum has the direction of the mean."""
        for start in range(0, len(tokens), TOKENS):
            vector += self._tokens[tokens[start : start + TOKENS]].sum(axis=0)
