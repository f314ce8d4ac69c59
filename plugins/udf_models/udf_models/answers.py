"""Reads answers: the text of a completion, the vectors and the ranks of texts. Raises ModelError for anything else."""

import base64
import binascii
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from udf_models.client import ModelError
from udf_models.models import Model

__all__ = ["ranks_of", "text_of", "vectors_of"]

THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
"""Parts of a message that are no part of its text."""
Vector = npt.NDArray[np.float32]


def text_of(answer: dict[str, Any], model: Model) -> str:
    """Return the text of the first choice of a completion.

    Raises:
        ModelError: There is no text; or it was filtered, refused or, unless the file allows that, cut.
    """
    where = f"model {model.name!r}"
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ModelError(f"{where}: the answer has no choices with a message")
    reason = choice.get("finish_reason")
    if reason == "content_filter":
        raise ModelError(f"{where}: the service has filtered the answer")
    if message.get("refusal"):
        raise ModelError(f"{where}: the model refuses to answer")
    if reason == "length" and not model.keep_cut_answers:
        raise ModelError(f"{where}: the answer is cut at the maximum number of tokens: raise it in parameters")
    text = _text(message.get("content"))
    if text is None:
        raise ModelError(f"{where}: the answer has no text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ModelError(f"{where}: the answer is not valid Unicode") from None
    return text


def vectors_of(answer: dict[str, Any], texts: int, model: Model) -> list[Vector]:
    """Return a vector for each text of the request, in its order. All have one length and finite elements.

    Raises:
        ModelError: The answer has something else.
    """
    where = f"model {model.name!r}"
    data = answer.get("data")
    if not isinstance(data, list) or len(data) != texts:
        found = len(data) if isinstance(data, list) else "no"
        raise ModelError(f"{where}: the answer has {found} vectors for {texts} texts")
    vectors: dict[int, Vector] = {}
    for place, each in enumerate(data):
        index: Any = each.get("index") if isinstance(each, dict) else None
        if index is None and isinstance(each, dict):
            index = place
        if type(index) is not int or not 0 <= index < texts or index in vectors:
            raise ModelError(f"{where}: the answer does not say which text a vector belongs to")
        vectors[index] = _vector(each.get("embedding"), where)
    if len({len(vector) for vector in vectors.values()}) > 1:
        raise ModelError(f"{where}: the answer has vectors of different lengths")
    return [vectors[index] for index in range(texts)]


def ranks_of(answer: dict[str, Any], texts: int, model: Model) -> list[dict[str, Any]]:
    """Return the position and the score of each text of the request, best first; equal scores in their order.

    Raises:
        ModelError: The answer has something else.
    """
    where = f"model {model.name!r}"
    results = answer.get("results")
    if not isinstance(results, list) or len(results) != texts:
        found = len(results) if isinstance(results, list) else "no"
        raise ModelError(f"{where}: the answer has {found} scores for {texts} texts")
    scores: dict[int, float] = {}
    for each in results:
        index: Any = each.get("index") if isinstance(each, dict) else None
        score: Any = each.get("relevance_score") if isinstance(each, dict) else None
        if type(index) is not int or not 0 <= index < texts or index in scores:
            raise ModelError(f"{where}: the answer does not say which text a score belongs to")
        if type(score) not in (int, float) or not -sys.float_info.max <= score <= sys.float_info.max:
            raise ModelError(f"{where}: a score of the answer is not a finite number")
        scores[index] = float(score)
    best = sorted(scores, key=lambda index: (-scores[index], index))
    return [{"position": index, "score": scores[index]} for index in best]


def _text(content: Any) -> str | None:
    """The text of a message, which may be a list of parts; None if there is none, or a part of another kind."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if kind in THOUGHTS:
            continue
        text = part.get("text") if kind in ("text", "output_text") else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts) if texts else None


def _vector(found: Any, where: str) -> Vector:
    """The service was asked for base64, which is cheaper to read; some send numbers in any case."""
    try:
        if isinstance(found, str):
            vector = np.frombuffer(base64.b64decode(found, validate=True), "<f4").astype(np.float32, copy=False)
        elif isinstance(found, list) and all(type(number) in (int, float) for number in found):
            with np.errstate(over="ignore"):
                vector = np.array(found, np.float64).astype(np.float32)
        else:
            raise ModelError(f"{where}: an element of the answer is not a vector")
    except (ValueError, OverflowError, binascii.Error):
        raise ModelError(f"{where}: an element of the answer is not a vector") from None
    if not len(vector) or not np.isfinite(vector).all():
        raise ModelError(f"{where}: a vector of the answer is empty or not finite")
    return vector
