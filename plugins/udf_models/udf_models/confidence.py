"""classify_with_confidence: the label of a text, and how probable it is by the model."""

import asyncio
import json
import math
from collections import Counter
from typing import Any

import udf_server as udf
from udf_models.client import ModelError
from udf_models.declaring import Connected, declared
from udf_models.models import Model
from udf_models.structured import answered, ask
from udf_models.structured_functions import CLASSIFY, label_question, label_reader, labels_cost, names_of

__all__ = ["classify_with_confidence", "probability_of"]


def classify_with_confidence(model: Model) -> udf.Function:
    """The function that chooses a label and tells how confident the model is, from 0 to 1.

    That is the probability of the tokens of the label; with samples it is the share of them that have this label.
    """
    connected = Connected(model)

    async def eval_(context: udf.CallContext, text: str, labels: list[str], instructions: str = "") -> dict[str, Any]:
        names = names_of(labels, "labels", model)
        question, read = label_question(text, names, instructions), label_reader(names)
        if model.confidence_samples is None:
            label, answer = await answered(connected.client, question.with_probabilities(), read, context)
            return {"value": label, "confidence": probability_of(label, answer, model)}
        try:
            async with asyncio.TaskGroup() as group:
                asked = [
                    group.create_task(ask(connected.client, question, read, context))
                    for _ in range(model.confidence_samples)
                ]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        ((label, count),) = Counter(task.result() for task in asked).most_common(1)
        return {"value": label, "confidence": count / model.confidence_samples}

    estimate = labels_cost(model, CLASSIFY)

    def cost(text: str, labels: list[str], instructions: str = "") -> dict[str, float]:
        amounts = estimate(text, labels, instructions)
        return {unit: amount * (model.confidence_samples or 1) for unit, amount in amounts.items()}

    return declared(
        connected, "classify_with_confidence", eval_, fixed=[CLASSIFY, model.confidence_samples], cost=cost,
        returns="struct<value string, confidence double>",
        description=f"The label that fits a text best, by {model.model}, and a confidence from 0 to 1.",
    )  # fmt: skip


def probability_of(label: str, answer: dict[str, Any], model: Model) -> float:
    """The probability of the tokens that spell the label in a completion, with the quotation mark after it.

    Raises:
        ModelError: The service has not sent the probabilities, or they are not those of the answer.
    """
    where = f"model {model.name!r}"
    found = answer["choices"][0].get("logprobs")
    tokens = found.get("content") if isinstance(found, dict) else None
    if not isinstance(tokens, list) or not tokens:
        raise ModelError(
            f"{where}: the answer has no logprobs, which the confidence is computed from; if the service has none, set "
            "confidence-samples"
        )
    # Tokens may end within a character, so positions are those of bytes.
    pieces = [_bytes(token, where) for token in tokens]
    text = b"".join(pieces)
    spelled = {json.dumps(label, ensure_ascii=ascii_)[1:].encode() for ascii_ in (True, False)}
    start, length = max((text.rfind(each), len(each)) for each in spelled)
    if start < 0:
        raise ModelError(f"{where}: the logprobs of the answer are not those of its label")
    total, place = 0.0, 0
    for token, piece in zip(tokens, pieces, strict=True):
        if place < start + length and place + len(piece) > start:
            total += _logarithm(token, where)
        place += len(piece)
    return min(math.exp(total), 1.0)


def _bytes(token: Any, where: str) -> bytes:
    given = token.get("bytes") if isinstance(token, dict) else None
    try:
        return bytes(given) if isinstance(given, list) else token["token"].encode()
    except (TypeError, ValueError, KeyError, AttributeError):
        raise ModelError(f"{where}: the logprobs of the answer are not lists of tokens") from None


def _logarithm(token: dict[str, Any], where: str) -> float:
    found = token.get("logprob")
    if isinstance(found, bool) or not isinstance(found, (int, float)) or math.isnan(found):
        raise ModelError(f"{where}: a logprob of the answer is not a number")
    return min(float(found), 0.0)
