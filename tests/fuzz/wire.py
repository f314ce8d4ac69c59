"""Mutated messages against a server's stream: it must end in time with a typed error, and leave nothing behind."""

import asyncio
import random
from collections import Counter

import psutil
import pyarrow as pa

import udf_server as udf
from remote_udf.errors import ErrorCode
from remote_udf.messages import read_response
from tests.udf_server.talk import batch, finish, opening
from udf_server.base.metrics import ServerMetrics
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.streams.execute_stream import ExecuteStream
from udf_server.streams.services import Admission, StreamLimits, StreamServices

__all__ = ["Fuzzer"]

HANG_SECONDS = 30.0
TEXTS = pa.schema([("a0", pa.string())])
LISTS = pa.schema([("a0", pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())])))])


@udf.scalar(name="f", timeout="10 s")
async def longs(x: int) -> int:
    return x


@udf.scalar(timeout="10 s")
def texts(x: str) -> str:
    return x


@udf.scalar(vectorized=True, timeout="10 s")
def vectors(x: pa.Int64Array) -> pa.Int64Array:
    return x


@udf.scalar(parameters={"x": LISTS.field(0).type}, returns=pa.int64(), timeout="10 s")
async def lists(x):
    return None if x is None else len(x)


class Fuzzer:
    """`run(tries)` sends this many streams; each must end with a last message, or with an error that it was lost."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.ends = Counter()
        """How streams ended: a code, or the kind of the last message."""
        self.problems = []
        self.metrics = ServerMetrics()
        self.admission = Admission()
        self.host = FunctionHost(Registry([("fuzz", function) for function in (longs, texts, vectors, lists)]))

    async def run(self, tries):
        limits = StreamLimits(message_bytes=1 << 20, unanswered_rows=10_000, unanswered_bytes=1 << 22)
        process = psutil.Process()
        for number in range(tries):
            if number == tries // 4:
                self.memory = process.memory_info().rss
                self.threads, self.files = process.num_threads(), process.num_fds()
            messages = self._messages()
            answers = []
            services = StreamServices(
                self.host, self.metrics, limits, self.admission, new_random=lambda number=number: random.Random(number)
            )
            stream = ExecuteStream(services)
            try:
                async with asyncio.timeout(HANG_SECONDS):
                    await stream.run(_given(messages), _into(answers))
            except TimeoutError:
                self.problems.append(f"try {number}: hangs")
            except BaseException as error:
                self.problems.append(f"try {number}: {error!r}")
            else:
                self._look(number, answers)
        self.grown = process.memory_info().rss - self.memory
        self.more_threads = process.num_threads() - self.threads
        self.more_files = process.num_fds() - self.files
        if self.admission.bytes or any(self.admission.rows(f.spec.key) for f in self.host.hosted()):
            self.problems.append("rows or bytes are still held")
        await self.host.close()

    def _look(self, number, answers):
        if not answers:
            self.problems.append(f"try {number}: no answer")
            return
        last, _ = read_response(answers[-1])
        kind = last.WhichOneof("response")
        if kind not in {"finished", "cancelled", "error"}:
            self.problems.append(f"try {number}: ends with {kind}")
        if kind == "error":
            if last.error.code == ErrorCode.INTERNAL or last.error.code not in set(ErrorCode):
                self.problems.append(f"try {number}: {last.error.code}: {last.error.message[:300]}")
            kind = last.error.code
        self.ends[kind] += 1

    def _messages(self):
        """The messages of a valid client, then mutated."""
        draw = self.random
        name, schema, values = draw.choice([
            ("f", None, range(draw.randrange(1, 50))),
            ("vectors", None, range(draw.randrange(1, 50))),
            ("texts", TEXTS, ["a" * draw.randrange(20) for _ in range(draw.randrange(1, 20))]),
            ("lists", LISTS, [[{"x": n, "y": "z" * n}] * draw.randrange(4) for n in range(draw.randrange(1, 20))]),
        ])  # fmt: skip
        more = {} if schema is None else {"schema": schema}
        good = [opening(name, **more), batch(0, 0, values, **more), batch(1, len(values), values, **more), finish()]
        for _ in range(draw.choice((0, 1, 1, 1, 2, 4))):
            self._worsen(good)
        return good

    def _worsen(self, messages):
        draw = self.random
        if not messages:
            return
        at = draw.randrange(len(messages))
        message = bytearray(messages[at])
        action = draw.randrange(9)
        if action <= 2 and message:
            for _ in range(draw.choice((1, 1, 2, 8, 64))):
                message[draw.randrange(len(message))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif action == 3:
            del message[draw.randrange(len(message) + 1) :]
        elif action == 4:
            start = draw.randrange(len(message) + 1)
            del message[start : start + draw.randrange(1, 33)]
        elif action == 5:
            start = draw.randrange(len(message) + 1)
            message[start:start] = draw.randbytes(draw.randrange(1, 65))
        elif action == 6:
            message = bytearray(draw.randbytes(draw.randrange(200)))
        elif action == 7:
            messages.insert(draw.randrange(len(messages) + 1), bytes(message))
        else:
            del messages[at]
            return
        messages[min(at, len(messages) - 1)] = bytes(message)


async def _given(messages):
    for message in messages:
        yield message
        await asyncio.sleep(0)
    # The client sends no more, but stays connected for a moment.
    await asyncio.sleep(0.001)


def _into(answers):
    async def write(message):
        answers.append(message)

    return write
