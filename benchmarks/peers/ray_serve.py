"""Ray Serve's `@serve.batch` with the work of the suite `batching`. Run it with a Python that has `ray[serve]`.

It prints rows per second as JSON. Each stream sends eight requests of a row, waits for their answers, and continues.
"""

# mypy: ignore-errors
# ray is in another environment than this project.

import asyncio
import json
import sys
import threading
import time

import ray
from ray import serve

CALL_SECONDS, ROW_SECONDS, BATCH_ROWS, QUEUE_DELAY = 0.02, 10e-6, 256, 0.005
MESSAGE_ROWS = 8


@serve.deployment(max_ongoing_requests=10_000)
class Model:
    def __init__(self):
        self._device = threading.Lock()

    def _on_device(self, rows):
        with self._device:
            time.sleep(CALL_SECONDS + rows * ROW_SECONDS)

    @serve.batch(max_batch_size=BATCH_ROWS, batch_wait_timeout_s=QUEUE_DELAY)
    async def score(self, xs: list[int]) -> list[int]:
        await asyncio.to_thread(self._on_device, len(xs))
        return xs

    async def __call__(self, x: int) -> int:
        return await self.score(x)


async def measured(handle, streams: int, rows: int) -> float:
    async def stream() -> None:
        for first in range(0, rows, MESSAGE_ROWS):
            await asyncio.gather(*(handle.remote(x) for x in range(first, first + MESSAGE_ROWS)))

    began = time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(streams)))
    return streams * rows / (time.perf_counter() - began)


def main() -> None:
    streams, rows = int(sys.argv[1]), int(sys.argv[2])
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    handle = serve.run(Model.bind(), route_prefix=None)
    asyncio.run(measured(handle, streams, MESSAGE_ROWS))
    print(json.dumps([asyncio.run(measured(handle, streams, rows)) for _ in range(3)]))
    serve.shutdown()


if __name__ == "__main__":
    main()
