"""The functions: a GET for each row."""

import json
from typing import Any

import udf_server as udf
from udf_http.client import HttpClient, HttpError
from udf_http.settings import HttpSettings

__all__ = ["http_get", "http_get_json"]

_RETRIES: dict[str, Any] = {"retry_strategy": "exponential-delay", "max_attempts": 4, "timeout": "60 s"}


class _Lookup:
    """A function with its own client, opened on the function's event loop."""

    client: HttpClient

    async def open(self) -> None:
        """Raises InvalidSetting. Runs again if the function gets another event loop."""
        self.client = HttpClient(HttpSettings.from_environment())

    async def close(self) -> None:
        await self.client.close()


class _Text(_Lookup):
    """The body of `GET <base URL><path>` as text; null for 404 and 410."""

    async def eval(self, path: str) -> str | None:
        return await self.client.get(path)


class _Json(_Lookup):
    """The body of `GET <base URL><path>`, checked to be JSON (RFC 8259); null for 404 and 410."""

    async def eval(self, path: str) -> str | None:
        body = await self.client.get(path)
        if body is not None:
            try:
                json.loads(body, parse_constant=_refuse)
            except ValueError as error:
                raise HttpError(f"GET {path}: the answer is not JSON: {error}") from None
        return body


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


http_get = udf.scalar(name="http_get", nulls="skip", **_RETRIES)(_Text)
http_get_json = udf.scalar(name="http_get_json", nulls="skip", **_RETRIES)(_Json)
