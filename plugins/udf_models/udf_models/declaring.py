"""Declares a function of a model: its name, its client, its options and its key in the cache."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import udf_server as udf
from udf_models.client import ModelClient
from udf_models.models import Model
from udf_models.usage import usage_type, with_usage, with_usage_of_texts

__all__ = ["Connected", "bytes_of", "declared", "messages"]

_OPTIONS: dict[str, Any] = {
    "retry_strategy": "exponential-delay", "max_attempts": 6, "initial_delay": "0.5 s", "max_delay": "30 s",
    "attempt_timeout": "60 s", "timeout": "5 min", "cache_ttl": "7 d",
}  # fmt: skip


class Connection(Protocol):
    """What a function opens before its first call."""

    @property
    def model(self) -> Model: ...

    @property
    def open(self) -> Callable[..., Awaitable[None]]: ...

    @property
    def close(self) -> Callable[[], Awaitable[None]]: ...


class Connected:
    """The client of one function, opened on the function's event loop."""

    client: ModelClient

    def __init__(self, model: Model) -> None:
        self.model = model

    async def open(self) -> None:
        """Runs again if the function gets another event loop."""
        self.client = ModelClient(self.model)

    async def close(self) -> None:
        await self.client.close()


def declared(
    connected: Connection, operation: str, code: Callable[..., Any], *, name: str | None = None, fixed: Any = None,
    **declaration: Any,
) -> udf.Function:  # fmt: skip
    """Declare `code` as a function of the model.

    Args:
        connected: Where `code` finds the client.
        operation: What the function does, the beginning of its name.
        code: An `async def`.
        name: The end of its name; by default that of the model.
        fixed: What the function sends in every request, besides what the model has.
        **declaration: As for `udf_server.scalar`. None removes an option that models have by default.

    If the model says so, it is the twin of the function that also returns what the call has cost.

    Raises:
        DeclarationError: An option of the model is unknown or not valid.
    """
    model = connected.model
    if model.with_usage:
        counted = with_usage_of_texts if declaration.get("batched") else with_usage
        operation, code = f"{operation}_with_usage", counted(code)
        declaration["returns"] = usage_type(declaration.get("returns", "string"))
        declaration["description"] += " The result also has the tokens and the money that the call has cost."
    options = {**_OPTIONS, **declaration}
    options = {each: value for each, value in options.items() if value is not None}
    # An operator's time to live of answers must not keep what changes between calls.
    options |= {each: value for each, value in model.options.items() if "cache_ttl" in options or each != "cache_ttl"}
    # An operator's key is one more part: without the digest, another model would get the answers of this one.
    parts = [options.pop("cache_key")] if "cache_key" in options else []
    options["cache_key"] = model.digest(operation, fixed, *parts)
    function = udf.scalar(name=f"{operation}_{name or model.name}", nulls="skip", **options)(code)
    function.on_open(connected.open)
    function.on_close(connected.close)
    return function


def bytes_of(*texts: str | None) -> int:
    """The bytes of texts, for estimates."""
    return sum(len(text.encode(errors="replace")) for text in texts if text)


def messages(content: str | list[dict[str, Any]], instructions: str) -> dict[str, Any]:
    """The body of a request for a completion."""
    system = [{"role": "system", "content": instructions}] if instructions else []
    return {"messages": [*system, {"role": "user", "content": content}]}
