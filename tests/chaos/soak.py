"""`python -m tests.chaos.soak`: a mixed load with faults; memory, mappings, files and threads must not grow.

All of them, and the duration of a job, are plotted as SVG.
"""

import argparse
import itertools
import os
import random
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from tests.chaos.flatness import courses
from tests.chaos.jobs import Job
from tests.chaos.keyed_jobs import aggregated, processed
from tests.chaos.servers import ChaosServer
from tests.chaos.short_jobs import given_up, lettered, short_streams

SAMPLES = 600
"""The number of samples of a run; at most two a second are taken."""
KILL_SECONDS = 20.0
THREADS = "4"
"""Threads per function. They are started on demand, each with its own arena of the allocator: few soon exist."""
WARM_UP = 42
"""The number of jobs before the first sample: three of each kind for each of two workers."""
ROWS = 20_000
WIDTH, HEIGHT, MARGIN = 720, 150, 40


class Samples:
    """The resources of the server that is never killed, and of this process, over time."""

    def __init__(self, server):
        self._processes = {"server": psutil.Process(server.pid), "client": psutil.Process()}
        self.rows = []

    def take(self, seconds, latency):
        row = {"seconds": seconds, "seconds per job": latency}
        for name, process in self._processes.items():
            with process.oneshot():
                row[f"{name} memory MB"] = process.memory_info().rss / (1 << 20)
                row[f"{name} maps"] = len(Path(f"/proc/{process.pid}/maps").read_text().splitlines())
                row[f"{name} threads"] = process.num_threads()
                row[f"{name} files"] = process.num_fds()
        self.rows.append(row)


KINDS = {
    "vectorized": lambda target, rng: Job(target, "fast", ROWS, ordered=rng.random() < 0.5).start().wait(),
    "async": lambda target, rng: Job(target, "slow", ROWS, ordered=rng.random() < 0.5).start().wait(),
    "aggregate": lambda target, rng: aggregated(target, ROWS, rng.choice((10, 500))),
    "short streams": lambda target, rng: short_streams(target, ROWS, rng),
    "dead letters": lambda target, rng: lettered(target, ROWS // 4, rng),
    "given up": lambda target, rng: given_up(target, ROWS, rng),
    "process table function": lambda target, rng: processed(target, ROWS, rng.choice((10, 500))),
}


def load(target, stop, latencies, tallies, rng):
    """Run jobs one after another, cycling through the kinds."""
    order = rng.sample(list(KINDS), len(KINDS))
    for kind in itertools.cycle(order):
        if stop.is_set():
            return
        began = time.monotonic()
        tally = KINDS[kind](target, rng)
        latencies.append(time.monotonic() - began)
        tallies.append((kind, tally))


def plot(rows):
    """Plot a chart per column, one below the other."""
    charts, span = [], max(rows[-1]["seconds"], 1.0)
    for number, name in enumerate(key for key in rows[0] if key != "seconds"):
        top, most = number * (HEIGHT + MARGIN) + MARGIN, max(*(row[name] for row in rows), 1e-9)
        points = " ".join(
            f"{MARGIN + row['seconds'] / span * WIDTH:.1f},{top + HEIGHT - row[name] / most * HEIGHT:.1f}"
            for row in rows
        )
        charts.append(
            f'<text x="{MARGIN}" y="{top - 6}">{name}, up to {most:.4g}, over {span:.0f} s</text>'
            f'<rect x="{MARGIN}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>'
            f'<polyline points="{points}" fill="none" stroke="#06c"/>'
        )
    size = f'width="{WIDTH + 2 * MARGIN}" height="{len(charts) * (HEIGHT + MARGIN) + MARGIN}"'
    font = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>{"".join(charts)}</svg>\n'


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("build/soak.svg"))
    asked = parser.parse_args()
    rng, stop = random.Random(asked.seed), threading.Event()
    latencies, tallies = [], []
    with ExitStack() as stack:
        servers = [ChaosServer(UDF_CONFIG_THREADS_PER_FUNCTION=THREADS) for _ in range(2)]
        for server in servers:
            stack.callback(server.kill)
        target = ",".join(server.target for server in servers)
        workers = [
            threading.Thread(target=load, args=(target, stop, latencies, tallies, random.Random(n)), daemon=True)
            for n in range(2)
        ]
        for worker in workers:
            worker.start()
        while len(tallies) < WARM_UP:
            time.sleep(0.1)
        samples, began, kills = Samples(servers[0]), time.monotonic(), 0
        killed = began
        while (passed := time.monotonic() - began) < asked.minutes * 60:
            time.sleep(max(asked.minutes * 60 / SAMPLES, 0.5))
            recent = latencies[-20:]
            samples.take(passed, sum(recent) / max(len(recent), 1))
            if time.monotonic() - killed > KILL_SECONDS * rng.uniform(0.5, 1.5):
                killed = time.monotonic()
                servers[1].kill()
                servers[1].start()
                kills += 1
        stop.set()
        for worker in workers:
            worker.join(120)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(plot(samples.rows))
    failures = [tally for _, tally in tallies if not tally.good]
    print(f"{len(tallies)} jobs, {kills} kills, {len(failures)} with lost, doubled or wrong rows; {asked.out}")
    for kind in KINDS:
        own = [tally for name, tally in tallies if name == kind]
        print(f"{kind}: {len(own)} jobs, {sum(tally.replays for tally in own)} replays")
    for tally in failures[:5]:
        print(tally)
    grown = [course for course in courses(samples.rows) if course.grew]
    for course in courses(samples.rows):
        print(course)
    sys.stdout.flush()
    os._exit(1 if failures or grown else 0)


if __name__ == "__main__":
    main()
