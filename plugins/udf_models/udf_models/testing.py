"""ScriptedService: an OpenAI-compatible service on this machine, for tests that need no network and no money.

`python -m udf_models.testing --port 8000 --latency 0.2` runs one in a process of its own.
"""

import argparse
import asyncio
import base64
import contextlib
import dataclasses
import json
import math
import re
import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from udf_models.scripted_batches import BatchEnding, ScriptedBatches

__all__ = ["BatchEnding", "Reply", "Request", "ScriptedService"]

START_SECONDS = 30.0
_TOKEN = re.compile(r"\w+|\W+")


@dataclass(frozen=True)
class Request:
    """A request that the service got. `body` is its JSON."""

    path: str
    """Below the URL of the service, such as chat/completions."""
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    time: float = 0.0
    """When it arrived: a reading of time.monotonic()."""
    method: str = "POST"
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """The text of the last message of a completion."""
        return _text(self.body["messages"][-1]["content"])


@dataclass(frozen=True)
class Reply:
    """What the service does with one request, in place of the usual answer."""

    status: int = 200
    body: Any = None
    """Text, bytes or JSON; None for the usual answer, or an error of the status."""
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    """The text of the usual answer to a completion."""
    finish_reason: str = "stop"
    probability: float = 1.0
    """That of each word of the text, which `logprobs` of a completion have if the request asks for them."""
    hang: bool = False
    """Do not answer before the service is told to `release` what hangs."""
    break_after: int | None = None
    """Close the connection after this number of bytes of the body."""
    drip_seconds: float | None = None
    """Send the body byte by byte, with this pause after each."""


class ScriptedService:
    """A service that answers completions with their prompt, and texts with vectors, after a latency.

    A completion is answered by `answer`, which gets the Request and returns the text or a Reply; by default the text is
    the last message. The vector of a text has four elements, and is the same for equal texts. The score of a text is
    the share of the words of the query that it has. A token is a word: `usage` counts them. Requests get the replies of
    `script` first, in their order. It has the Batch API, too: a batch ends `batch_seconds` after its creation.

    ```python
    with ScriptedService() as service:
        service.script(Reply(status=429, headers={"Retry-After": "1"}), Reply(text="Paris"))
        ...  # service.url is the url of a model
        assert len(service.requests) == 2
    ```

    It runs on its own thread, so tests may block. All its methods may be called from any thread.
    """

    def __init__(
        self,
        answer: Callable[[Request], str | Reply] = lambda request: request.prompt,
        *,
        latency: float = 0.0,
        port: int = 0,
        batch_seconds: float = 0.0,
        folder: Path | None = None,
    ) -> None:
        """Create a service; it starts when it is entered.

        Args:
            answer: Answers a completion. It runs on the thread of the service.
            latency: Seconds from a request to its answer.
            port: Port on this machine; 0 picks a free one.
            batch_seconds: Seconds from the creation of a batch to its end.
            folder: Where files and batches are kept, so that a service that is started again has them.
        """
        self.answer = answer
        self.latency = latency
        self.requests: list[Request] = []
        """The requests that have arrived."""
        self.most_in_flight = 0
        """Largest number of requests that were in flight at once."""
        self._script: deque[Reply] = deque()
        self._scripts: defaultdict[tuple[str, str], deque[Reply]] = defaultdict(deque)
        """The replies by method and path."""
        self._batches = ScriptedBatches(self._batch_answer, batch_seconds, folder)
        self._port = port
        self._in_flight = 0
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="scripted-service", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._released = asyncio.Event()

    @property
    def url(self) -> str:
        """What the models of a file have as `url`."""
        return f"http://127.0.0.1:{self._port}/v1/"

    @property
    def batches(self) -> list[str]:
        """The ids of the batches that were created."""
        return self._batches.ids

    @property
    def batch_rows(self) -> int:
        """Number of requests in all batches."""
        return self._batches.requests.total()

    @property
    def resubmitted_rows(self) -> int:
        """Number of requests in batches that an earlier batch had already."""
        return self._batches.requests.total() - len(self._batches.requests)

    def script(self, *replies: Reply, path: str | None = None, method: str = "POST") -> None:
        """Answer the next requests so, one reply each, whatever they are for, or only those of a path and method.

        A path may have wildcards, as in `files/*/content`.
        """
        (self._script if path is None else self._scripts[method, path]).extend(replies)

    def release(self) -> None:
        """Answer the requests whose replies hang. Those that arrive later hang again."""

        def release() -> None:
            self._released.set()
            self._released.clear()

        if self._loop is not None:
            self._loop.call_soon_threadsafe(release)

    def script_batches(self, *endings: BatchEnding) -> None:
        """Let the next batches end so."""
        self._batches.endings.extend(endings)

    @property
    def batch_seconds(self) -> float:
        """Seconds from the creation of a batch to its end. A change holds for batches that have not ended, too."""
        return self._batches.seconds

    @batch_seconds.setter
    def batch_seconds(self, seconds: float) -> None:
        self._batches.seconds = seconds

    def __enter__(self) -> "ScriptedService":
        return self.start()

    def start(self) -> "ScriptedService":
        """Start the service, which then accepts requests. `close` ends it, or the end of a `with` block."""
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            raise TimeoutError(f"the service did not start in {START_SECONDS:g} s")
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the service and every request. May be called twice."""
        if self._loop is not None and self._end is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # whoever enters raises it
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/v1/{path:.*}", self._respond)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self._port, backlog=4096).start()
            self._port = runner.addresses[0][1]
            self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
            self._started.set()
            await self._end.wait()
        finally:
            await runner.cleanup()

    async def _respond(self, incoming: web.Request) -> web.StreamResponse:
        request = await self._received(incoming)
        self.requests.append(request)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            reply = self._next_reply(request)
            await asyncio.sleep(self.latency)
            if not reply.hang:
                reply = self._whole(request, reply)
            if reply.hang:
                await self._released.wait()
                reply = self._whole(request, reply)
            return await self._send(incoming, request, reply)
        finally:
            self._in_flight -= 1

    def _whole(self, request: Request, reply: Reply) -> Reply:
        """The reply with a body: its own, or the usual one."""
        return self._usual(request, reply) if reply.status == 200 and reply.body is None else reply

    def _next_reply(self, request: Request) -> Reply:
        for (method, path), script in self._scripts.items():
            if script and method == request.method and fnmatchcase(request.path, path):
                return script.popleft()
        return self._script.popleft() if self._script else Reply()

    async def _received(self, incoming: web.Request) -> Request:
        path = incoming.match_info["path"]
        body: Mapping[str, Any] = {}
        if incoming.method == "POST":
            is_file = path == "files"
            body = await self._batches.uploaded(incoming) if is_file else json.loads(await incoming.read() or "{}")
        return Request(path, body, dict(incoming.headers), time.monotonic(), incoming.method, dict(incoming.query))

    def _batch_answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request of a batch."""
        reply = self._usual(Request("chat/completions", body), Reply())
        found = reply.body if reply.status == 200 else {"error": {"code": f"scripted_{reply.status}"}}
        return dict(found)

    async def _send(self, incoming: web.Request, request: Request, reply: Reply) -> web.StreamResponse:
        body = reply.body
        if body is None:
            body = {"error": {"message": f"scripted for {_texts(request)}", "code": f"scripted_{reply.status}"}}
        data = (
            body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        )
        response = web.StreamResponse(
            status=reply.status, headers={"Content-Type": "application/json", **reply.headers}
        )
        response.content_length = len(data)
        # Clients may be gone: servers are killed, and attempts time out.
        with contextlib.suppress(ConnectionError):
            await response.prepare(incoming)
            await self._write(response, data, reply)
            if reply.break_after is not None and incoming.transport is not None:
                incoming.transport.abort()
        return response

    @staticmethod
    async def _write(response: web.StreamResponse, data: bytes, reply: Reply) -> None:
        if reply.drip_seconds is None:
            await response.write(data[: reply.break_after])
            return
        for place in range(len(data)):
            await response.write(data[place : place + 1])
            await asyncio.sleep(reply.drip_seconds)

    def _usual(self, request: Request, reply: Reply) -> Reply:
        if request.path == "embeddings":
            return dataclasses.replace(reply, body=_embeddings(request))
        if request.path == "rerank":
            return dataclasses.replace(reply, body=_ranking(request))
        if request.path.partition("/")[0] in ("files", "batches"):
            found = self._batches.reply(request.method, request.path, request.query, request.body)
            return Reply(status=404) if found is None else dataclasses.replace(reply, body=found)
        if request.path != "chat/completions":
            return Reply(status=404)
        if reply.text is not None:
            return dataclasses.replace(reply, body=_completion(request, reply.text, reply))
        found = self.answer(request)
        if isinstance(found, str):
            return dataclasses.replace(reply, body=_completion(request, found, reply))
        if found.body is None and found.status == 200:
            return dataclasses.replace(found, body=_completion(request, found.text or "", found))
        return found


def _texts(request: Request) -> str:
    """All texts of a request, which a careless service repeats in its errors."""
    return json.dumps([request.body.get(name) for name in ("messages", "input", "query", "documents")])


def _text(content: Any) -> str:
    """The text of a message, or of its parts, of which images are others."""
    if isinstance(content, list):
        return " ".join(str(part["text"]) for part in content if "text" in part)
    return str(content)


def _words(*texts: Any) -> int:
    return sum(len(str(text).split()) for text in texts)


def _completion(request: Request, text: str, reply: Reply) -> dict[str, Any]:
    asked, written = _words(*(_text(each["content"]) for each in request.body["messages"])), _words(text)
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason}
    if request.body.get("logprobs"):
        choice["logprobs"] = {"content": [_token(each, reply.probability) for each in _TOKEN.findall(text)]}
    return {
        "object": "chat.completion",
        "model": request.body["model"],
        "choices": [choice],
        "usage": {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written},
    }


def _token(text: str, probability: float) -> dict[str, Any]:
    return {"token": text, "logprob": math.log(probability) if text[0].isalnum() else 0.0, "bytes": list(text.encode())}


def _embeddings(request: Request) -> dict[str, Any]:
    texts, as_base64 = request.body["input"], request.body.get("encoding_format") == "base64"
    vectors = [_vector(text) for text in texts]
    data = [
        {
            "object": "embedding",
            "index": place,
            "embedding": base64.b64encode(vector.tobytes()).decode() if as_base64 else vector.tolist(),
        }
        for place, vector in enumerate(vectors)
    ]
    used = _words(*texts)
    return {"object": "list", "data": data, "usage": {"prompt_tokens": used, "total_tokens": used}}


def _ranking(request: Request) -> dict[str, Any]:
    query, texts = str(request.body["query"]).lower().split(), request.body["documents"]
    shared = [sum(word in str(text).lower().split() for word in query) / max(len(query), 1) for text in texts]
    results = [{"index": place, "relevance_score": score} for place, score in enumerate(shared)]
    return {"results": results, "usage": {"total_tokens": _words(*texts) + len(query) * len(texts)}}


def _vector(text: str) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """The numbers of letters, digits, spaces and other characters."""
    counts = [
        sum(map(str.isalpha, text)), sum(map(str.isdigit, text)), sum(map(str.isspace, text)),
        sum(not (each.isalnum() or each.isspace()) for each in text),
    ]  # fmt: skip
    return np.array(counts, "<f4")


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m udf_models.testing", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds from a request to its answer")
    parser.add_argument("--batch-seconds", type=float, default=0.0, help="seconds from a batch to its end")
    parser.add_argument("--folder", type=Path, help="where files and batches outlive the process")
    chosen = parser.parse_args()
    with ScriptedService(
        latency=chosen.latency, port=chosen.port, batch_seconds=chosen.batch_seconds, folder=chosen.folder
    ) as service:
        print(service.url, flush=True)  # noqa: T201 - whoever started it reads the URL
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
