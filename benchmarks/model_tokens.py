"""Tokens that two servers use together, against the rate that they share by a Redis."""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa

from benchmarks.cache import redis_server
from benchmarks.direct import Client
from benchmarks.late_way import late_way
from benchmarks.model_server import model_server
from benchmarks.results import Results
from udf_models.testing import ScriptedService
from udf_server.limits.settings import BURST_PART

__all__ = ["measure_tokens"]

RATE = 2_000
"""Tokens per second."""
PROMPT_TOKENS = 10
CALL_TOKENS = 2 * PROMPT_TOKENS
"""The answer is the prompt. Bytes and max_tokens estimate more, which is corrected when a call ends. One that
is too small would let the first calls exceed the rate by its error."""
SERVERS = 2
LATE_SECONDS = 0.1
"""Longest time of a request from the guard to the service."""


def measure_tokens(results: Results, quick: bool) -> None:
    """All prompts are new. A request is counted with all its tokens when it arrives at the service, some time later."""
    rows = (4 if quick else 40) * RATE // CALL_TOKENS // SERVERS
    with (
        tempfile.TemporaryDirectory() as folder, redis_server() as redis, ScriptedService(latency=0.05) as service,
        late_way(service.url, LATE_SECONDS) as url,
    ):  # fmt: skip
        config = Path(folder) / "server.toml"
        config.write_text(f'[guards.complete_small]\nrate = "{RATE} tokens/second"\n')
        settings = ["--config", str(config), "--coordination-url", redis]
        limit = f"max_tokens = {PROMPT_TOKENS}"
        with (
            model_server(url, settings, limit) as first, model_server(url, settings, limit) as second,
            ThreadPoolExecutor(SERVERS) as threads,
        ):  # fmt: skip
            clients = [Client(server.target) for server in (first, second)]
            parts = [_prompts(number, rows) for number in range(SERVERS)]
            list(threads.map(lambda client, part: client.seconds("complete_small", part), clients, parts))
        times = sorted(request.time for request in service.requests)
    assert len(times) == rows * SERVERS
    most = max(sum(time <= each < time + 1 for each in times) for time in times) * CALL_TOKENS
    note = f"tokens of the worst second over the rate, less 1; {SERVERS} servers, {RATE:,} tokens/second; "
    note += f"0 to {LATE_SECONDS * 1000:g} ms from the guard to the service"
    results.add("token_rate_overshoot", max(most / RATE - 1, 0.0), note)
    # A tenth of a second's tokens may begin at once, and the others at the pace of the rate.
    used = len(times) * CALL_TOKENS / RATE / (times[-1] - times[0] + 1 / BURST_PART)
    results.add("token_rate_used", used, "tokens over those that the rate, its pace and its burst allow meanwhile")


def _prompts(number: int, rows: int) -> Sequence[pa.RecordBatch]:
    texts = [f"s{number} ticket {row:05} cannot be closed today why is that" for row in range(rows)]
    return [pa.record_batch([pa.array(texts, pa.string())], names=["prompt"])]
