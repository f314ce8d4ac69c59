"""A service that completes prompts with themselves, at a fraction of the CPU time that its clients need.

`python -m benchmarks.model_service --latency 0.2` prints its URL and serves until it gets SIGTERM. Where a benchmark
need not look at the requests, it takes the place of `udf_models.testing`, which needs more CPU time than
its clients.
"""

import argparse
import asyncio
import json
import re
import signal
from typing import Any, cast

import uvloop

__all__ = ["main"]

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class _Connection(asyncio.Protocol):
    """One connection, whose client sends a request after the answer to the one before (HTTP/1.1 without pipelining)."""

    def __init__(self, latency: float) -> None:
        self._latency, self._received = latency, b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no such base class

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and (length := _LENGTH.search(head)) and len(body) >= int(length[1]):
            self._received = b""
            self._loop.call_later(self._latency, self._answer, body)

    def _answer(self, body: bytes) -> None:
        answer = json.dumps(_completion(json.loads(body))).encode()
        if not self._transport.is_closing():
            self._transport.write(_HEAD % len(answer) + answer)


def _completion(request: dict[str, Any]) -> dict[str, Any]:
    content = request["messages"][-1]["content"]
    text = content if isinstance(content, str) else " ".join(part["text"] for part in content)
    words = len(text.split())
    return {
        "object": "chat.completion",
        "model": request["model"],
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": words, "completion_tokens": words, "total_tokens": 2 * words},
    }


async def _serve(latency: float) -> None:
    loop, end = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, end.set)
    server = await loop.create_server(lambda: _Connection(latency), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/", flush=True)
    await end.wait()


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_service", description=__doc__)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds from a request to its answer")
    uvloop.run(_serve(parser.parse_args().latency))


if __name__ == "__main__":
    main()
