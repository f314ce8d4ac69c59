"""The functions: one for each model and each thing that it can do, such as `complete_small`."""

from collections.abc import Callable
from typing import Any

import udf_server as udf
from udf_models.answers import Vector, text_of, vectors_of
from udf_models.client import ModelClient, ModelError, RequestRefused
from udf_models.models import Model, read_models
from udf_models.settings import ModelsSettings

__all__ = ["functions_of"]

_OPTIONS: dict[str, Any] = {
    "retry_strategy": "exponential-delay", "max_attempts": 6, "initial_delay": "0.5 s", "max_delay": "30 s",
    "attempt_timeout": "60 s", "timeout": "5 min", "cache_ttl": "7 d",
}  # fmt: skip
TEXTS = 32
"""Texts of one request for embeddings."""


def functions_of(settings: ModelsSettings) -> list[udf.Function]:
    """Return the functions of a file of models. Raises InvalidModels, or DeclarationError for its options."""
    makers: dict[str, Callable[[Model], udf.Function]] = {"complete": _complete, "embed": _embed}
    models = read_models(settings.file, settings.hosts)
    return [makers[operation](model) for model in models for operation in model.functions]


class _Connected:
    """The client of one function, opened on the function's event loop."""

    client: ModelClient

    def __init__(self, model: Model) -> None:
        self.model = model

    async def open(self) -> None:
        """Runs again if the function gets another event loop."""
        self.client = ModelClient(self.model)

    async def close(self) -> None:
        await self.client.close()


def _declared(connected: _Connected, operation: str, code: Callable[..., Any], **declaration: Any) -> udf.Function:
    model = connected.model
    options = {**_OPTIONS, "cache_key": model.digest(operation), **declaration, **model.options}
    declared = udf.scalar(name=f"{operation}_{model.name}", nulls="skip", **options)(code)
    declared.on_open(connected.open)
    declared.on_close(connected.close)
    return declared


def _bytes(*texts: str) -> int:
    return sum(len(text.encode(errors="replace")) for text in texts)


def _complete(model: Model) -> udf.Function:
    connected = _Connected(model)

    async def complete(context: udf.CallContext, prompt: str, instructions: str = "") -> str:
        messages = [{"role": "user", "content": prompt}]
        if instructions:
            messages.insert(0, {"role": "system", "content": instructions})
        return text_of(await connected.client.post("chat/completions", {"messages": messages}, context), model)

    def cost(prompt: str, instructions: str = "") -> dict[str, float]:
        return model.estimate(_bytes(prompt, instructions), answers=True)

    description = f"The answer of {model.model} to a prompt. `instructions` are a system message."
    return _declared(connected, "complete", complete, cost=cost, description=description)


def _embed(model: Model) -> udf.Function:
    connected = _Connected(model)

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
        return model.estimate(_bytes(*text), answers=False)

    return _declared(
        connected, "embed", embed, cost=cost, batched=True, batch_rows=TEXTS, returns="array<float>",
        parameters="text string", description=f"The vector of a text by {model.model}.",
    )  # fmt: skip
