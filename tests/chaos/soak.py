"""`python -m tests.chaos.soak`: mixed load with faults; memory, files, threads and latency, plotted as SVG."""

import argparse
import os
import random
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from tests.chaos.jobs import Job
from tests.chaos.keyed_jobs import aggregated, processed
from tests.chaos.servers import ChaosServer

SAMPLE_SECONDS = 2.0
ROWS = 20_000
WIDTH, HEIGHT, MARGIN = 720, 150, 40


class Samples:
    """What the server that is never killed, and this process, take as time passes."""

    def __init__(self, server):
        self._processes = {"server": psutil.Process(server.pid), "client": psutil.Process()}
        self.rows = []

    def take(self, seconds, latency):
        row = {"seconds": seconds, "seconds per job": latency}
        for name, process in self._processes.items():
            with process.oneshot():
                row[f"{name} memory MB"] = process.memory_info().rss / (1 << 20)
                row[f"{name} threads"] = process.num_threads()
                row[f"{name} files"] = process.num_fds()
        self.rows.append(row)


KINDS = {
    "vectorized": lambda target, rng: Job(target, "fast", ROWS, ordered=rng.random() < 0.5).start().wait(),
    "async": lambda target, rng: Job(target, "slow", ROWS, ordered=rng.random() < 0.5).start().wait(),
    "aggregate": lambda target, rng: aggregated(target, ROWS, rng.choice((10, 500))),
    "process table function": lambda target, rng: processed(target, ROWS, rng.choice((10, 500))),
}


def load(target, stop, latencies, tallies, rng):
    """One job after another, of every kind there is here."""
    while not stop.is_set():
        began, kind = time.monotonic(), rng.choice(list(KINDS))
        tally = KINDS[kind](target, rng)
        latencies.append(time.monotonic() - began)
        tallies.append((kind, tally))


def plot(rows):
    """A chart per column, one below the other."""
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
        servers = [ChaosServer(), ChaosServer()]
        for server in servers:
            stack.callback(server.kill)
        target = ",".join(server.target for server in servers)
        workers = [
            threading.Thread(target=load, args=(target, stop, latencies, tallies, random.Random(n)), daemon=True)
            for n in range(2)
        ]
        samples, began, kills = Samples(servers[0]), time.monotonic(), 0
        for worker in workers:
            worker.start()
        while (passed := time.monotonic() - began) < asked.minutes * 60:
            time.sleep(SAMPLE_SECONDS)
            recent = latencies[-20:]
            samples.take(passed, sum(recent) / max(len(recent), 1))
            if rng.random() < 0.1:
                servers[1].kill()
                servers[1].start()
                kills += 1
        stop.set()
        for worker in workers:
            worker.join(120)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(plot(samples.rows))
    third = samples.rows[len(samples.rows) // 3]
    failures = [tally for _, tally in tallies if not tally.good]
    print(f"{len(tallies)} jobs, {kills} kills, {len(failures)} with lost, doubled or wrong rows; {asked.out}")
    for kind in KINDS:
        own = [tally for name, tally in tallies if name == kind]
        print(f"{kind}: {len(own)} jobs, {sum(tally.replays for tally in own)} replays")
    for tally in failures[:5]:
        print(tally)
    for name in third:
        print(f"{name}: {third[name]:.4g} after a third, {samples.rows[-1][name]:.4g} at the end")
    sys.stdout.flush()
    os._exit(1 if failures else 0)


if __name__ == "__main__":
    main()
