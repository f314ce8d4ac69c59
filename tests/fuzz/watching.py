"""Watched: a server process with small limits, a neighbour that uses it, and the checks on both under attack."""

import asyncio
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.servers import ChaosServer
from tests.fuzz.attacks import Target
from tests.fuzz.hostile_messages import MESSAGE_BYTES, STREAM_ROWS
from tests.leftovers import mapped
from udf_server.security.access import hashed

__all__ = ["Watched"]

STREAMS, SERVER_BYTES, THREADS = 40, 8 << 20, 4
LIMITS = {
    "MAX_MESSAGE_BYTES": MESSAGE_BYTES, "MAX_STREAM_ROWS": STREAM_ROWS, "MAX_STREAM_BYTES": 1 << 20,
    "MAX_FUNCTION_ROWS": 5 * STREAM_ROWS, "MAX_SERVER_BYTES": SERVER_BYTES, "MAX_STREAMS": STREAMS + 10,
    "MAX_STREAMS_PER_CALLER": STREAMS, "MAX_CONNECTIONS": 500, "THREADS_PER_FUNCTION": THREADS, "IDLE_SECONDS": 3,
    "KEEPALIVE_SECONDS": 2,
}  # fmt: skip
KEPT = 256 << 20
"""The bytes of freed memory that the allocator keeps, as the server configures it (`process_setup.py`)."""
MEMORY = 2 * SERVER_BYTES + 2 * STREAMS * MESSAGE_BYTES + KEPT + (32 << 20)
"""The allowed growth in bytes: what the server holds, once as received and once as values; per stream, a message that
is being received and one that is being sent; what the allocator keeps; slack for the values of rows."""
LEFT = KEPT
"""The allowed growth in bytes from the first quarter to the end."""
LAG_SECONDS = 1.0
"""How late the server's loop, an answer to a small call, and /livez may be on an otherwise idle machine.

If each process gets half a core, the allowed time doubles.
"""
SETTLE_SECONDS = 15.0
NAP_SECONDS = 0.02
MOST_THREADS = 120
"""Those of the loop, of gRPC and of HTTP; a loop and four threads per function."""
TOKENS = {name: name * 3 for name in ("neighbour", "attacker")}
CORE_WORDS = ("ExecuteBatchError raised in core by servicer method",)
"""Log lines of gRPC itself about a client that left before its answer; a traceback follows."""
BAD_WORDS = (
    "Traceback",
    "stream failed",
    "never retrieved",
    "Fatal Python error",
    "Segmentation",
    "Task was destroyed",
)


class Watched:
    """Call `begin` and `after` for each round, `at_the_end` after all of them."""

    def __init__(self, folder: Path) -> None:
        access = folder / "access.toml"
        access.write_text(
            "".join(f'[{name}]\ntoken_sha256 = "{hashed(name * 3)}"\n' for name in ("neighbour", "attacker"))
        )
        self._log = folder / "log"
        environment = {f"UDF_CONFIG_{name}": str(value) for name, value in LIMITS.items()}
        self._server = ChaosServer(
            "--log-level", "warning",
            plugin=str(Path(__file__).with_name("served.py")), log=self._log, UDF_CONFIG_ACCESS_FILE=str(access),
            **environment,
        )  # fmt: skip
        self._process = psutil.Process(self._server.pid)
        http_port = int(self._server.metrics.rpartition(":")[2])
        headers = (("authorization", f"Bearer {TOKENS['attacker']}"),)
        self.target = Target(self._server.port, http_port, headers)
        self._read = self._highest = 0
        self._rests: list[int] = []
        self.gone = False

    def __enter__(self) -> "Watched":
        try:
            self._neighbour = _Neighbour(self._server)
            self._late = self._count_late()
        except BaseException:
            self._server.kill()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._neighbour.stop()
        self._server.kill()

    def begin(self) -> None:
        """Reset the peak of memory."""
        Path(f"/proc/{self._server.pid}/clear_refs").write_text("5")
        self._base = self._process.memory_info().rss
        self._neighbour.ask()

    async def after(self) -> list[str]:
        """The problems after the attackers have left."""
        if self._server.ended:
            self.gone = True
            return [f"the server is gone: {self._server.ended}: {self._log_tail()}"]
        problems = []
        if left := await asyncio.to_thread(self._settled):
            problems.append(f"{SETTLE_SECONDS:g} s after the attackers are gone there are still {left}")
        more = self._peak() - self._base
        self._highest = max(self._highest, more)
        if more > MEMORY:
            problems.append(f"memory grew by {more >> 20} MB; at most {MEMORY >> 20} MB")
        seen = await asyncio.to_thread(self._neighbour.ask)
        slowdown = max(1.0, self._neighbour.slowdown, seen["waited"] / seen["worked"] if seen["worked"] else 1.0)
        allowed = LAG_SECONDS * slowdown + 2 * seen["machine"]
        if seen["slowest"] > allowed:
            problems.append(f"{seen['what']} of the neighbour took {seen['slowest']:.2f} s; at most {allowed:.2f} s")
        late, self._late = self._late, await asyncio.to_thread(self._count_late)
        if self._late > late and slowdown < 1.5 and seen["machine"] < LAG_SECONDS / 2:
            problems.append(f"the server's event loop was more than {LAG_SECONDS:g} s late")
        problems += seen["problems"]
        problems += self._logged()
        self._rests.append(self._process.memory_info().rss)
        return problems

    def at_the_end(self) -> list[str]:
        """The problems that remain after all rounds."""
        problems = self._logged()
        if self.gone or not self._rests:
            return problems
        if (more := self._grown()) > LEFT:
            problems.append(f"{more >> 20} MB stay after the last round that were not there after the first quarter")
        if (threads := self._process.num_threads()) > MOST_THREADS:
            problems.append(f"{threads} threads; at most {MOST_THREADS}")
        if count := mapped(self._server.pid):
            problems.append(f"{count} mappings of shared memory stay")
        return problems

    def report(self) -> str:
        """The state of the server in a line."""
        if self.gone:
            return "the server is gone"
        process = self._process
        return (
            f"server: memory {self._process.memory_info().rss >> 20} MB, {self._grown() / (1 << 20):+.0f} MB after the "
            f"first quarter, at most {self._highest >> 20} MB more in a round, "
            f"{process.num_threads()} threads, {process.num_fds()} files; the neighbour's "
            f"{self._neighbour.calls:,} calls took {self._neighbour.worst:.2f} s at most"
        )

    def _grown(self) -> int:
        return self._process.memory_info().rss - self._rests[len(self._rests) // 4] if self._rests else 0

    def _settled(self) -> dict[str, float]:
        """What is left of the attackers after some time."""
        until = time.monotonic() + SETTLE_SECONDS
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(NAP_SECONDS)
        return left

    def _left(self) -> dict[str, float]:
        """What is left of the attackers now."""
        samples = self._samples()
        found = {
            name: sum(value for key, value in samples.items() if key.startswith(name) and '"quick"' not in key)
            for name in ("udf_streams_open", "udf_rows_in_flight", "udf_turns_waiting")
        }
        ports = {self.target.grpc_port, self.target.http_port}
        found["connections"] = (
            sum(
                each.status == psutil.CONN_ESTABLISHED and each.laddr.port in ports
                for each in self._process.net_connections()
            )
            - 1
        )  # the neighbour's
        return {name: value for name, value in found.items() if value > 0}

    def _samples(self) -> dict[str, float]:
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                with urllib.request.urlopen(self._server.metrics + "/metrics", timeout=20) as page:
                    lines = page.read().decode().splitlines()
                break
            except urllib.error.HTTPError:  # only a few scrapes are answered at a time
                if time.monotonic() > until:
                    raise
                time.sleep(NAP_SECONDS)
        return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines) if key[:1] not in "#"}

    def _count_late(self) -> float:
        """How often the server's loop was later than allowed."""
        samples = self._samples()
        name = "udf_event_loop_lag_seconds"
        return samples[f"{name}_count"] - samples[f'{name}_bucket{{le="{LAG_SECONDS:g}.0"}}']

    def _peak(self) -> int:
        for line in Path(f"/proc/{self._server.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) << 10
        return 0

    def _logged(self) -> list[str]:
        """Suspicious log lines since the last call."""
        with self._log.open(errors="replace") as log:
            log.seek(self._read)
            text = log.read()
            self._read = log.tell()
        for line in text.splitlines():
            if any(word in line for word in CORE_WORDS):
                text = text.replace(line, "").replace("Traceback", "", 1)
        places = [place for word in BAD_WORDS if (place := text.find(word)) >= 0]
        return [f"the log has: {text[max(min(places) - 300, 0) :][:4_000]}"] if places else []

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:]


class _Neighbour:
    """The process of another client, see tests.fuzz.neighbour; it is separate so that no attack slows it down."""

    def __init__(self, server: ChaosServer) -> None:
        command = [sys.executable, "-m", "tests.fuzz.neighbour", server.target, server.metrics, TOKENS["neighbour"]]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.calls, self.worst, self._worked, self._waited = 0, 0.0, 0.0, 0.0
        self.ask()

    @property
    def slowdown(self) -> float:
        """The elapsed time of its own work divided by its CPU time, over all rounds."""
        return self._waited / self._worked if self._worked else 1.0

    def ask(self) -> dict[str, Any]:
        """What it has seen since the last call."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seen = json.loads(self._process.stdout.readline())
        self.calls += seen["calls"]
        self.worst = max(self.worst, seen["slowest"])
        self._worked += seen["worked"]
        self._waited += seen["waited"]
        return seen

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()
