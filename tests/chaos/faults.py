"""The fault table: each entry injects a fault into a running job, by a seed, and returns the job's tally."""

import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from spark_client.base.security import Security
from tests.chaos.jobs import Job, Tally
from tests.chaos.proxy import Proxy
from tests.chaos.servers import ChaosServer
from tests.chaos.strangers import Strangers, open_streams
from tests.udf_server.secured import Pki
from udf_server.security.access import hashed

__all__ = ["FAULTS"]

MEMORY_LIMIT = 400 << 20
"""The memory in bytes at which a server is killed, as a container would be."""


def servers(stack, count=2, **environment):
    made = [ChaosServer(**environment) for _ in range(count)]
    for server in made:
        stack.callback(server.kill)
    return made


def proxies(stack, behind, seed):
    made = [Proxy(server.port, seed) for server in behind]
    for proxy in made:
        stack.callback(proxy.close)
    return made


def target_of(some):
    return ",".join(one.target for one in some)


def harm(job, every, rng, action):
    """Run the action at random intervals until the job has ended; return the number of times."""
    count = 0
    while job.running:
        time.sleep(every * rng.uniform(0.5, 1.5))
        if job.running:
            action()
            count += 1
    return count


def killed(scale, seed):
    """SIGKILL of a random server every second or two"""
    rng = random.Random(seed)
    with ExitStack() as stack:
        some = servers(stack)

        def kill():
            victim = rng.choice(some)
            victim.kill()
            victim.start()

        # At least a quarter of the rows must wait, so that the job lasts for several kills.
        job = Job(target_of(some), "fast", 10_000_000 // scale).start()
        waiting = Job(target_of(some), "slow", 2_000_000 // scale, ordered=False).start()
        count = harm(waiting, 1.5, rng, kill)
        fast, slow = job.wait(), waiting.wait()
        return counted(added(fast, slow, ""), count, "{count} kills")


def added(one, other, note):
    return Tally(
        one.rows + other.rows, max(one.seconds, other.seconds), one.lost + other.lost, one.doubled + other.doubled,
        one.wrong + other.wrong, one.replays + other.replays, one.reconnects + other.reconnects, note,
        one.failures + other.failures,
    )  # fmt: skip


def frozen(scale, seed):
    """SIGSTOP of a random server for 20 s, then SIGCONT"""
    rng = random.Random(seed)
    with ExitStack() as stack:
        some = servers(stack)
        job = Job(target_of(some), "slow", 2_000_000 // scale).start()

        def freeze():
            victim = rng.choice(some)
            victim.signal(signal.SIGSTOP)
            time.sleep(20.0 if scale < 10 else 3.0)
            victim.signal(signal.SIGCONT)

        count = harm(job, 1.0, rng, freeze)
        return counted(job.wait(), count, "{count} times")


def noted(tally, note):
    tally.note = note
    return tally


def counted(tally, count, note):
    """Record how often the fault occurred. If the job ended before it did, the fault was not exercised."""
    tally.note = note.format(count=count)
    if not count:
        tally.not_exercised = "the job ended before"
    return tally


def frozen_from_the_start(scale, seed):
    """one of two servers under SIGSTOP before the first connection, and for the whole job"""
    rng = random.Random(seed)
    with ExitStack() as stack:
        some = servers(stack)
        victim = rng.choice(some)
        victim.signal(signal.SIGSTOP)
        tally = Job(target_of(some), "slow", 400_000 // scale, connect_seconds=10.0).start().wait()
        victim.signal(signal.SIGCONT)
        return noted(tally, "for the whole job")


def cut(scale, seed):
    """every connection cut in the middle, twice a second"""
    rng = random.Random(seed)
    with ExitStack() as stack:
        some = proxies(stack, servers(stack), seed)
        job = Job(target_of(some), "slow", 1_000_000 // scale, ordered=False).start()
        count = harm(job, 0.5, rng, lambda: [proxy.cut() for proxy in some])
        return counted(job.wait(), count, "{count} cuts")


def delayed(scale, seed):
    """every packet delayed by up to 100 ms"""
    with ExitStack() as stack:
        some = proxies(stack, servers(stack), seed)
        for proxy in some:
            proxy.delay = 0.1
        return noted(Job(target_of(some), "slow", 400_000 // scale).start().wait(), "")


def black_holed(scale, seed):
    """a network that silently drops everything"""
    rng = random.Random(seed)
    with ExitStack() as stack:
        some = proxies(stack, servers(stack), seed)
        job = Job(target_of(some), "slow", 1_000_000 // scale).start()
        while job.share < 0.2:
            time.sleep(0.01)
        hole = rng.choice(some)
        hole.swallow = True
        tally = job.wait()
        hole.swallow = False
        return noted(tally, "for the rest of the job")


def another_version(scale, seed):
    """servers restarted one by one, with a later version of the function beside the old one"""
    with ExitStack() as stack:
        some = servers(stack)
        job = Job(target_of(some), "slow", 1_000_000 // scale).start()
        for server in some:
            while job.running and job.share < 0.3:
                time.sleep(0.01)
            server.terminate()
            server.wait()
            server.start(CHAOS_VERSION="2")
        return noted(job.wait(), "drained, so nothing is sent twice")


def versions_differ(scale, seed):
    """one of two servers has a later version of the function; then the other is updated as well"""
    with ExitStack() as stack:
        old, new = servers(stack, 1)[0], servers(stack, 1, CHAOS_VERSION="2")[0]
        # The call is planned without a version, and must not use the later version, which returns other values.
        job = Job(target_of([old, new]), "slow", 800_000 // scale).start()
        while job.running and job.share < 0.3:
            time.sleep(0.01)
        old.terminate()
        old.wait()
        old.start(CHAOS_VERSION="2")
        return noted(job.wait(), "a name without a version means the one that both have")


def out_of_memory(scale, seed):
    """servers that leak, ended at their memory limit as a container is"""
    with ExitStack() as stack:
        some = servers(stack)
        job, count = Job(target_of(some), "leaking", 8_000_000 // scale).start(), 0
        while job.running:
            time.sleep(0.005)
            for server in some:
                if server.resident > (MEMORY_LIMIT if scale < 5 else MEMORY_LIMIT // 2):
                    server.kill()
                    server.start()
                    count += 1
        return counted(job.wait(), count, "{count} times")


def rolling_restart(scale, seed):
    """SIGTERM of the servers in turn, as a deployment does"""
    with ExitStack() as stack:
        some = servers(stack)
        job, count = Job(target_of(some), "slow", 1_000_000 // scale, ordered=False).start(), 0
        while job.running:
            for server in some:
                server.terminate()
                server.wait()
                server.start()
                count += 1
        return counted(job.wait(), count, "{count} restarts")


def reloaded(scale, seed):
    """`udf-server reload` again and again, with TLS, half of the times with SIGKILL of a process of the server"""
    rng, failed = random.Random(seed), []
    with ExitStack() as stack:
        pki = Pki(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        certificate, key = pki.issue("server")
        server = ChaosServer("--processes", "2", "--tls-certificate", certificate, "--tls-key", key)
        stack.callback(server.kill)

        def reload():
            after = rng.choice([None, rng.uniform(0.0, 3.0)])
            if (said := server.reload(after, rng)) and after is None:
                failed.append(said)

        security = Security(tls=True, ca_file=pki.ca)
        job = Job(server.target, "slow", 1_000_000 // scale, security=security).start()
        count = harm(job, 0.5, rng, reload)
        tally = counted(job.wait(), count, "{count} reloads")
        tally.failures += failed
        return tally


def left_open(scale, seed):
    """clients that vanish without closing, leave streams idle, or send nothing: they hold all slots but a few"""
    environment = {"UDF_CONFIG_KEEPALIVE_SECONDS": "1", "UDF_CONFIG_IDLE_SECONDS": "2", "UDF_CONFIG_MAX_STREAMS": "40"}
    rng = random.Random(seed)
    with ExitStack() as stack:
        (server,) = servers(stack, 1, **environment)
        (proxy,) = proxies(stack, [server], seed)
        strangers = stack.enter_context(Strangers("slow"))
        for _ in range(19):
            strangers.open(proxy.target)
            strangers.open(server.target)
        strangers.wait()
        proxy.swallow = True
        job = Job(server.target, "slow", 400_000 // scale).start()
        harm(job, 1.0, rng, lambda: [strangers.open(server.target) for _ in range(10)])
        tally, deadline = job.wait(), time.monotonic() + 60
        while (left := open_streams(server)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            tally.failures.append(f"{left:g} streams are still open")
        return noted(tally, f"{strangers.opened} streams; the server takes 40 at a time")


def greedy(scale, seed):
    """a caller with fifty streams of a thousand rows in flight each, beside a job of another caller"""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rules, security = "", {}
        for name in ("greedy", "nice"):
            (folder / name).write_text(name)
            rules += f'[{name}]\ntoken_sha256 = "{hashed(name)}"\n'
            security[name] = Security(token_file=str(folder / name))
        (folder / "access.toml").write_text(rules)
        (server,) = servers(stack, 1, UDF_CONFIG_ACCESS_FILE=str(folder / "access.toml"))

        def job():
            return Job(server.target, "slow", 100_000 // scale, security=security["nice"]).start()

        alone = job().wait().seconds
        many = {"tasks": 50, "options": {"buffer-capacity": "1000"}, "security": security["greedy"]}
        flood = Job(server.target, "slow", 20_000_000, **many).start()
        stack.callback(flood.stop)
        while not flood.share:
            time.sleep(0.01)
        tally = job().wait()
        if not flood.running:
            tally.not_exercised = "the flood ended before"
        # Clients, flood and server share the cores of this machine.
        if tally.seconds > 10 * alone + 10:
            tally.failures.append(f"{tally.seconds:.1f} s instead of {alone:.1f} s")
        return noted(tally, f"{tally.seconds / alone:.1f} times as long as alone")


DEAD_LETTERS = """
import resource, signal, sys
import pyarrow as pa, pyarrow.parquet as pq
from spark_client.base.errors import DeadLetterFailed
from spark_client.executor.scalar.dead_letter import DeadLetterWriter, Operator
from spark_client.executor.stream.task import TaskInfo
from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from pathlib import Path

folder, rows = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def attempt():
    writer = DeadLetterWriter(folder, Operator("operation"))
    try:
        for start in range(0, rows, 1000):
            table = pa.table({"x": range(start, start + 1000)})
            errors = [RowError(ErrorCode.FUNCTION_ERROR, f"{n:0200}", 1) for n in range(1000)]
            writer.write(table, ["f@1"] * 1000, errors)
        writer.commit()
    except BaseException:
        writer.abort()
        raise

limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
try:
    attempt()
    print("no failure")
except DeadLetterFailed:
    print(len(list(Path(folder).glob("*"))), "left")
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
attempt()
print(pq.read_table(folder).num_rows)
"""


def disk_full(scale, seed):
    """no space for dead letters in the first attempt of a task"""
    rows, began = max(100_000 // scale, 5_000) // 1000 * 1000, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", DEAD_LETTERS, f"{folder}/letters", str(rows)], capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
    tally = Tally(rows, time.monotonic() - began, note="the attempt fails and leaves nothing; the next writes all")
    if done.stdout.split("\n")[0] != "0 left":
        tally.failures.append((done.stdout + done.stderr)[-500:])
    else:
        written = int(done.stdout.split("\n")[1])
        tally.lost, tally.doubled = max(rows - written, 0), max(written - rows, 0)
    return tally


FAULTS = (
    killed, frozen, frozen_from_the_start, cut, delayed, black_holed, another_version, versions_differ, rolling_restart,
    reloaded, out_of_memory, disk_full, left_open, greedy,
)  # fmt: skip
