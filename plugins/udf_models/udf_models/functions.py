"""The functions: one for each model and each thing that it can do, such as `complete_small`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import udf_server as udf
from udf_models.answers import Vector, ranks_of, text_of, vectors_of
from udf_models.batches.functions import complete_batch, complete_json_batch
from udf_models.client import ModelError, RequestRefused
from udf_models.confidence import classify_with_confidence
from udf_models.declaring import Connected, bytes_of, declared, messages
from udf_models.images import IMAGE_BYTES, image_url
from udf_models.models import Model
from udf_models.models_file import read_models
from udf_models.settings import ModelsSettings
from udf_models.structured_functions import classify, complete_json, extract

__all__ = ["functions_of"]

TEXTS = 32
"""Texts of one request for embeddings."""
WITHOUT_USAGE = ("complete_batch",)
"""Functions that have no twin with usage: the costs of a batch become known long after its calls."""


def functions_of(settings: ModelsSettings) -> list[udf.Function]:
    """Return the functions of a file of models. Raises InvalidModels, or DeclarationError for its options."""
    makers: dict[str, Callable[[Model], udf.Function]] = {
        "complete": _complete, "complete_batch": complete_batch, "complete_image": _complete_image,
        "classify": classify, "classify_with_confidence": classify_with_confidence, "extract": extract,
        "embed": _embed, "rerank": _rerank,
    }  # fmt: skip
    functions = []
    for model in read_models(settings.file, settings.hosts):
        plain = replace(model, with_usage=False)
        functions += [makers[operation](plain) for operation in model.functions]
        functions += [complete_json(plain, name, shape) for name, shape in model.answers.items()]
        if "complete_batch" in model.functions:
            functions += [complete_json_batch(plain, name, shape) for name, shape in model.answers.items()]
        if model.with_usage:
            functions += [makers[operation](model) for operation in model.functions if operation not in WITHOUT_USAGE]
            functions += [complete_json(model, name, shape) for name, shape in model.answers.items()]
    return functions


def _complete(model: Model) -> udf.Function:
    connected = Connected(model)

    async def complete(context: udf.CallContext, prompt: str, instructions: str = "") -> str:
        body = messages(prompt, instructions)
        return text_of(await connected.client.post("chat/completions", body, context), model)

    def cost(prompt: str, instructions: str = "") -> dict[str, float]:
        return model.estimate(bytes_of(prompt, instructions), answers=True)

    description = f"The answer of {model.model} to a prompt. `instructions` are a system message."
    return declared(connected, "complete", complete, cost=cost, description=description)


def _complete_image(model: Model) -> udf.Function:
    connected = Connected(model)

    async def complete_image(context: udf.CallContext, prompt: str, image: str | bytes, instructions: str = "") -> str:
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": prompt}, {"type": "image_url", "image_url": {"url": image_url(image, model)}}
        ]  # fmt: skip
        body = messages(parts, instructions)
        return text_of(await connected.client.post("chat/completions", body, context), model)

    def cost(prompt: str, image: str | bytes, instructions: str = "") -> dict[str, float]:
        return model.estimate(bytes_of(prompt, instructions) + IMAGE_BYTES, answers=True)

    description = f"The answer of {model.model} to a prompt about an image: its URL, or the bytes of its file."
    return declared(connected, "complete_image", complete_image, cost=cost, description=description)


def _embed(model: Model) -> udf.Function:
    connected = Connected(model)

    async def embed(context: udf.BatchContext, text: list[str]) -> list[Vector | udf.Failure]:
        try:
            body = {"input": text, "encoding_format": "base64"}
            answer = await connected.client.post("embeddings", body, context)
            return list(vectors_of(answer, len(text), model))
        except RequestRefused:
            raise  # the server finds the text that is refused
        except (ModelError, udf.RetryableError) as error:
            after = error.retry_after if isinstance(error, udf.RetryableError) else None
            retryable = isinstance(error, udf.RetryableError)
            return [udf.Failure(str(error), retryable=retryable, retry_after=after) for _ in text]

    def cost(text: list[str]) -> dict[str, float]:
        return model.estimate(bytes_of(*text), answers=False)

    return declared(
        connected, "embed", embed, cost=cost, batched=True, batch_rows=TEXTS, returns="array<float>",
        parameters="text string", description=f"The vector of a text by {model.model}.",
    )  # fmt: skip


def _rerank(model: Model) -> udf.Function:
    connected = Connected(model)

    async def rerank(context: udf.CallContext, query: str, texts: list[str]) -> list[dict[str, Any]]:
        if None in texts:
            raise ModelError(f"model {model.name!r}: texts has a null")
        if not texts:
            return []
        body = {"query": query, "documents": texts}
        return ranks_of(await connected.client.post("rerank", body, context), len(texts), model)

    def cost(query: str, texts: list[str]) -> dict[str, float]:
        return model.estimate(bytes_of(query) * len(texts) + bytes_of(*texts), answers=False)

    return declared(
        connected, "rerank", rerank, cost=cost, returns="array<struct<position:int,score:double>>",
        description=f"The positions of texts, from 0, by how well they answer a query, best first, by {model.model}.",
    )  # fmt: skip
