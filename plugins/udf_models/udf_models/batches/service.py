"""BatchService: the requests of the Batch API, for files of chat completions."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from udf_models.client import ModelClient, UnusableAnswer
from udf_models.refusals import shown_code
from udf_server import RetryableError

__all__ = ["ENDPOINT", "BatchService", "BatchStatus", "Uncertain"]

ENDPOINT = "/v1/chat/completions"
ASK_SECONDS = 60.0
"""How long the service may take to answer, and to send the next bytes of a file."""
PAGE, PAGES = 100, 100
"""Batches of a page of the list, and the pages that are read at most."""
CLOCKS_DIFFER = 3_600.0
"""The service's clock may be that far from ours."""
METADATA = "udf_submission"
"""The field of a batch's metadata that has the id of the submission."""
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_ENDED = ("completed", "failed", "expired", "cancelled")


class Uncertain(Exception):
    """The service may have created the batch."""


class _Late(Exception):
    """A request is no longer to be sent."""


@dataclass(frozen=True)
class BatchStatus:
    """What the service says about a batch."""

    id: str
    status: str
    files: tuple[str, ...]
    """The ids of its files with results: of the answers, then of the errors."""
    code: str
    """Why it has failed, as errors show codes; empty if the service does not say."""

    @property
    def ended(self) -> bool:
        return self.status in _ENDED


class BatchService:
    """Batches of the service of a model. Methods raise RetryableError and ModelError, as `ModelClient.post` does."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    async def upload(self, lines: bytes) -> str:
        """Upload a file of requests, one JSON object per line. Returns its id."""
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", lines, filename="requests.jsonl", content_type="application/jsonl")
        return self._id(await self._client.fetched("POST", "files", form), "files")

    async def create(self, file: str, submission: str, window: str, is_late: Callable[[], bool]) -> str:
        """Create a batch of a file, with the id of its submission in its metadata. Returns the id of the batch.

        Args:
            file: The id of the file.
            submission: The id of the submission.
            window: The time in which the service is to answer.
            is_late: Whether the batch must no longer be created. It is asked when there is a connection, immediately
                before the request is sent.

        Raises:
            Uncertain: It is not known whether the batch was created.
            ModelError: The service has refused it.
        """
        body = {
            "input_file_id": file, "endpoint": ENDPOINT, "completion_window": window,
            "metadata": {METADATA: submission},
        }  # fmt: skip
        data = json.dumps(body).encode()

        async def in_time() -> AsyncIterator[bytes]:
            if is_late():
                raise _Late
            yield data

        headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        try:
            return self._id(await self._client.fetched("POST", "batches", in_time(), headers), "batches")
        except (RetryableError, UnusableAnswer) as error:
            raise Uncertain("its lease has ended" if is_late() else str(error)) from None

    async def status(self, batch: str) -> BatchStatus:
        """Ask for the status of a batch."""
        async with _answer_in_time("batches"):
            found = await self._client.fetched("GET", f"batches/{batch}")
        files = [found.get(name) for name in ("output_file_id", "error_file_id")]
        errors = found.get("errors")
        listed = errors.get("data") if isinstance(errors, dict) else None
        first = listed[0] if isinstance(listed, list) and listed else None
        code = first.get("code") if isinstance(first, dict) else None
        return BatchStatus(
            batch, str(found.get("status")), tuple(str(each) for each in files if _is_id(each)),
            shown_code(code) if isinstance(code, str) and code else "",
        )  # fmt: skip

    async def find(self, submission: str, since: float) -> str | None:
        """Look for the batch of a submission among those created since then. Returns its id; None if there is none."""
        query = {"limit": str(PAGE)}
        for _ in range(PAGES):
            async with _answer_in_time("batches"):
                page = await self._client.fetched("GET", "batches", query=query)
            batches = page.get("data")
            if not isinstance(batches, list) or not all(isinstance(each, dict) for each in batches):
                raise UnusableAnswer(f"model {self._client.model.name!r}, batches: the answer has no list of batches")
            for each in batches:
                metadata = each.get("metadata")
                if isinstance(metadata, dict) and metadata.get(METADATA) == submission:
                    return self._id(each, "batches")
            last = batches[-1] if batches else {}
            created = last.get("created_at")
            old = isinstance(created, (int, float)) and created < since - CLOCKS_DIFFER
            if not page.get("has_more") or old or not _is_id(last.get("id")):
                return None
            query["after"] = last["id"]
        raise UnusableAnswer(f"model {self._client.model.name!r}, batches: the list has more than {PAGES} pages")

    async def lines(self, file: str, most_bytes: int) -> AsyncGenerator[bytes, None]:
        """The lines of a file, as they arrive. A line that is larger than `max-answer-bytes` is empty.

        Raises:
            UnusableAnswer: The file is larger than `most_bytes`. Its first lines were returned.
        """
        path, most_line = f"files/{file}/content", self._client.model.answer_bytes
        line, size, too_long = bytearray(), 0, False
        async with self._client.answered("GET", path) as response:
            chunks = response.content.iter_any()
            while True:
                async with _answer_in_time(path):
                    chunk = await anext(chunks, b"")
                if not chunk:
                    break
                size += len(chunk)
                if size > most_bytes:
                    raise UnusableAnswer(
                        f"model {self._client.model.name!r}, files: a file of the batch is larger than "
                        f"batch.max-file-bytes, {most_bytes}"
                    )
                *ended, rest = chunk.split(b"\n")
                for part in ended:
                    line += part
                    yield b"" if too_long or len(line) > most_line else bytes(line)
                    line, too_long = bytearray(), False
                line += rest
                if len(line) > most_line:
                    line, too_long = bytearray(), True
        if line or too_long:
            yield b"" if too_long else bytes(line)

    def _id(self, found: dict[str, Any], path: str) -> str:
        if not _is_id(found.get("id")):
            raise UnusableAnswer(f"model {self._client.model.name!r}, {path}: the answer has no id")
        return str(found["id"])


@contextlib.asynccontextmanager
async def _answer_in_time(path: str) -> AsyncIterator[None]:
    """Raise RetryableError if the block takes longer than ASK_SECONDS."""
    try:
        async with asyncio.timeout(ASK_SECONDS):
            yield
    except TimeoutError:
        raise RetryableError(f"{path}: no answer in {ASK_SECONDS:g} s") from None


def _is_id(found: Any) -> bool:
    """Whether it may be part of a path."""
    return isinstance(found, str) and _ID.fullmatch(found) is not None and found not in (".", "..")
