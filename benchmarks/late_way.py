"""A way to a service on which each request takes another time: it listens on a port, and passes on what arrives."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

__all__ = ["late_way"]


@contextlib.contextmanager
def late_way(url: str, seconds: float) -> Iterator[str]:
    """The URL of a service behind the way. A request takes a uniform random time of at most `seconds` on it."""
    target, draw, loop = urlsplit(url), random.Random(1), asyncio.new_event_loop()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: float) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(draw.uniform(0.0, most))
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(pass_on(reader, requests, seconds), pass_on(answers, writer, 0.0))

    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0, backlog=1_000))
    thread = threading.Thread(target=loop.run_forever, name="late way")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{target.path}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
