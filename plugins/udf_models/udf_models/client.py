"""ModelClient: requests to the service of one model; returns the JSON of the answer, or raises the matching error.

No error has a part of a prompt or of an answer, unless the operator's file allows what the service says.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp

from udf_models.models import Model
from udf_models.redaction import RedactionFailed
from udf_models.refusals import TRY_AGAIN, Refusal, error_of, phrase, reported_error
from udf_server import BatchContext, CallContext, RetryableError
from udf_server.retry_after import retry_after_seconds

__all__ = ["Body", "ModelClient", "ModelError", "RequestRefused", "UnusableAnswer"]

Body = bytes | aiohttp.FormData | AsyncIterable[bytes] | None
"""What a request sends. An iterable is asked when the connection is made."""

CONTENT_REFUSED = (400, 413, 422)
"""The service does not accept the texts of the request; it may accept others."""
CONNECT_SECONDS = 10.0
LARGE = 64 << 10
"""Bytes of an answer that are parsed on a thread: other rows go on meanwhile."""
MOST_TOKENS = 1e9
"""A service that reports more tokens for a request is not believed."""


class ModelError(Exception):
    """The service refused a request, or its answer is not usable; another attempt would not help."""


class RequestRefused(ModelError):
    """The service does not accept the texts of a request, because they are too long, for example."""


class UnusableAnswer(ModelError):
    """The service accepted a request, and its answer is too large or not as expected."""


class ModelClient:
    """Connections to the service of a model, for the event loop on which it was created."""

    def __init__(self, model: Model, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns the time of day, which dates in Retry-After are compared with."""
        self.model = model
        self._clock = clock
        # A compressed answer could be much larger than what is read, so none is accepted.
        headers = {"Accept-Encoding": "identity"}
        if model.key is not None:
            headers["Authorization"] = f"Bearer {model.key}"
        self._session = aiohttp.ClientSession(
            # The server bounds the calls in flight, and the time of an attempt by the option attempt-timeout.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            headers=headers,
            auto_decompress=False,
            # Cookies would let the answer of one row change the request of another.
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def post(self, path: str, body: dict[str, Any], context: CallContext | BatchContext) -> dict[str, Any]:
        """Return the JSON object of the answer, and report its usage to the context.

        The model's name and parameters are added to the body.

        Raises:
            RetryableError: The request may succeed later.
            RequestRefused: The texts of the request are not accepted.
            ModelError: The service refused the request, or its answer is not a JSON object or too large.
        """
        data = self.encoded(path, body)
        found = await self.fetched("POST", path, data, {"Content-Type": "application/json"})
        if amounts := self.amounts(found.get("usage")):
            context.spend(**amounts)
        return found

    def encoded(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Return the JSON of a request, with the model's name and parameters, redacted.

        Raises:
            RequestRefused: It is larger than `max-prompt-bytes`.
            ModelError: The function that redacts has failed.
        """
        model, where = self.model, f"model {self.model.name!r}, {path}"
        if model.redact is not None:
            try:
                body = model.redact.body(body)
            except RedactionFailed as error:
                raise ModelError(f"{where}: {error}") from None
        data = json.dumps({**model.parameters, "model": model.model, **body}, ensure_ascii=False).encode()
        if len(data) > model.prompt_bytes:
            raise RequestRefused(
                f"{where}: the request has {len(data)} bytes; max-prompt-bytes is {model.prompt_bytes}"
            )
        return data

    async def fetched(
        self, method: str, path: str, data: Body = None, headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the JSON object with which the service answers a request. Raises as `post` does."""
        async with self.answered(method, path, data, headers, query) as response:
            found = await _parsed(await self._body(response, path))
            if not isinstance(found, dict):
                raise UnusableAnswer(f"model {self.model.name!r}, {path}: the answer is not a JSON object")
            if (error := reported_error(found)) is not None:
                raise self._refusal(response, error, f"model {self.model.name!r}, {path}: the answer is an error")
        return found

    @contextlib.asynccontextmanager
    async def answered(
        self, method: str, path: str, data: Body = None, headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:  # fmt: skip
        """Send a request. The block gets a response of status 2xx and reads its body. Raises as `post` does."""
        where = f"model {self.model.name!r}, {path}"
        try:
            # A redirect could send the key and the prompt to another host.
            async with self._session.request(
                method, self.model.url / path, data=data, headers=headers, params=query, allow_redirects=False
            ) as response:
                if not 200 <= response.status < 300:
                    raise self._refusal(response, error_of(await _parsed(await self._body(response, path))), where)
                yield response
        except TimeoutError:
            raise RetryableError(f"{where}: no connection in {CONNECT_SECONDS:g} s") from None
        except aiohttp.ClientSSLError as error:
            raise ModelError(f"{where}: {type(error).__name__}") from None
        except aiohttp.ClientError as error:
            # Its text may have bytes of the answer, and its repr headers, so neither is shown.
            why = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
            raise RetryableError(f"{where}: {type(error).__name__}{why}") from None

    def amounts(self, usage: Any, discount: float = 0.0) -> dict[str, float]:
        """The units that a request has cost by the usage that the service reports; empty if it does not say it."""
        if not isinstance(usage, dict):
            return {}
        tokens_in, tokens_out = _tokens(usage.get("prompt_tokens")), _tokens(usage.get("completion_tokens"))
        if tokens_in is None and tokens_out is None:
            # Services that only read, such as those that rank, say the total.
            tokens_in = _tokens(usage.get("total_tokens"))
        if tokens_in is None and tokens_out is None:
            return {}
        amounts = {"tokens_in": tokens_in or 0.0, "tokens_out": tokens_out or 0.0}
        amounts["tokens"] = sum(amounts.values())
        usd = self.model.usd(amounts["tokens_in"], amounts["tokens_out"])
        return amounts if usd is None else {**amounts, "usd": usd * (1 - discount)}

    async def close(self) -> None:
        """Close every connection. May be called twice."""
        await self._session.close()
        # Transports close in the next iteration of the event loop.
        await asyncio.sleep(0)

    def __repr__(self) -> str:
        return f"<client of model {self.model.name}>"

    async def _body(self, response: aiohttp.ClientResponse, path: str) -> bytes:
        # The body is read in chunks, so that an answer that is too large is never held in memory.
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > self.model.answer_bytes:
                raise UnusableAnswer(
                    f"model {self.model.name!r}, {path}: the answer is larger than max-answer-bytes, "
                    f"{self.model.answer_bytes}"
                )
            chunks.append(chunk)
        return b"".join(chunks)

    def _refusal(self, response: aiohttp.ClientResponse, error: Any, where: str) -> Exception:
        status, refusal = response.status, Refusal.of(error)
        message = f"{where}: {status} {phrase(status)}" + (f" ({refusal.code})" if refusal.code else "")
        if self.model.show_service_messages and refusal.said:
            message += f": {refusal.said}"
        if refusal.final:
            again = False
        elif 200 <= status < 300:
            again, status = refusal.passes, refusal.status or status
        else:
            again = status in TRY_AGAIN or status >= 500
        if again:
            return RetryableError(message, retry_after=self._retry_after(response))
        return (RequestRefused if status in CONTENT_REFUSED else ModelError)(message)

    def _retry_after(self, response: aiohttp.ClientResponse) -> float | None:
        exact = response.headers.get("retry-after-ms", "")
        if exact.isascii() and exact.isdecimal():
            return int(exact[:12]) / 1000
        return retry_after_seconds(response.headers.get("Retry-After"), self._clock())


async def _parsed(raw: bytes) -> Any:
    """The JSON of an answer; None if it is not JSON (RFC 8259)."""
    return _json(raw) if len(raw) <= LARGE else await asyncio.to_thread(_json, raw)


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _tokens(found: Any) -> float | None:
    number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return float(found) if number and 0 <= found <= MOST_TOKENS else None
