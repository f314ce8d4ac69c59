"""The memory of groups: processes near it are replaced, those above it are killed, and who counts it."""

import os
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from tests.udf_server.group_servers import Site, called, page, serving
from tests.udf_server.serving.test_cores import of
from tests.waiting import wait_until
from udf_server.serving.memory_watch import MemoryWatch, resident_bytes
from udf_server.serving.resources import limited_memory

GROWING = """
import os
import threading
import time
import udf_server as udf

held = []

@udf.scalar(deterministic=False)
async def hold(megabytes: int) -> int:
    held.append(os.urandom(1) * (megabytes << 20))
    return os.getpid()

def grow():
    while not os.path.exists(__file__ + ".grow"):
        time.sleep(0.01)
    held.append(os.urandom(1) * (1_100 << 20))

@udf.scalar(deterministic=False)
async def prepare_to_grow(x: int) -> int:
    threading.Thread(target=grow, daemon=True).start()
    return os.getpid()

@udf.scalar(deterministic=False)
async def own_pid(x: int) -> int:
    return os.getpid()
"""


class World:
    """A watch over two groups, of which `geo` has two processes and 200 bytes; the test says what they use."""

    def __init__(self):
        self.now, self.used, self.killed, self.renewed = 0.0, {}, [], []
        self.geo = self.group("geo", 200, [10, 11])
        self.registry = CollectorRegistry()
        self.watch = MemoryWatch(
            lambda: [self.group(None, None, [1]), self.geo], lambda group: self.renewed.append(group.name),
            self.registry, resident=lambda pid: self.used.get(pid, 0), clock=lambda: self.now,
        )  # fmt: skip

    def group(self, name, memory, pids):
        workers = [self.worker(pid) for pid in pids]
        return SimpleNamespace(name=name, memory=memory, workers=workers, retired=False)

    def worker(self, pid):
        process = SimpleNamespace(pid=pid, kill=lambda: self.killed.append(pid))
        return SimpleNamespace(named={"worker": pid}, process=process)

    def look(self, seconds=1.0, **used):
        self.now += seconds
        self.used = {int(pid.removeprefix("p")): each for pid, each in used.items()}
        self.watch.look()

    def counted(self, action):
        return self.registry.get_sample_value("udf_memory_exceeded_total", {"group": "geo", "action": action})


def test_a_process_near_its_part_is_replaced_and_one_above_it_is_killed(caplog):
    world = World()
    world.look(p1=1_000_000, p10=90, p11=89)
    assert (world.renewed, world.killed, world.counted("replaced")) == ([], [], 0)
    world.look(p10=91)
    assert (world.renewed, world.killed, world.counted("replaced")) == (["geo"], [], 1)
    world.look(p10=101, p11=100)
    assert (world.renewed, world.killed, world.counted("killed")) == (["geo"], [10], 1)
    assert [(line.worker, line.bytes, line.limit) for line in caplog.records] == [(10, 91, 100), (10, 101, 100)]


def test_a_group_that_always_needs_almost_all_is_not_replaced_all_the_time():
    world = World()
    for _ in range(121):
        world.look(p10=95, p11=95)
    assert len(world.renewed) == 3


def test_processes_that_drain_are_killed_above_their_part_and_not_replaced():
    world = World()
    world.geo.retired = True
    world.look(p10=95, p11=101)
    assert (world.renewed, world.killed) == ([], [11])


def test_the_memory_of_a_process_is_that_of_the_system_and_that_of_none_is_0():
    assert 1 << 20 < resident_bytes(os.getpid()) < 1 << 40
    assert resident_bytes(1 << 30) == 0


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a\n", {"memory.max": "max", "a/memory.max": "1000"}, 1000),
        ("0::/\n", {"memory.max": "max"}, None),
        ("5:memory:/a\n0::/\n", {"memory/memory.limit_in_bytes": "2000", "memory.max": "max"}, 2000),
    ],
)
def test_the_memory_of_a_container_is_the_least_of_its_control_groups(tmp_path, groups, files, limit):
    assert limited_memory(of(tmp_path, groups, files)) == limit


@pytest.mark.long
@pytest.mark.slow
def test_a_group_that_grows_is_replaced_without_a_lost_row_and_one_that_jumps_is_killed(tmp_path):
    site = Site(tmp_path)
    (tmp_path / "growing.py").write_text(GROWING)
    table = f'[groups.growing]\nplugins = ["{tmp_path}/growing.py"]\nmemory = "1 GB"\n'
    with serving(site, site.settings(table)) as (_, ready):
        (first,) = ready["groups"]["growing"]
        assert called(ready["target"], "hold", [1]) == [first]
        assert called(ready["target"], "hold", [970 - (resident_bytes(first) >> 20)]) == [first]

        def events():
            return [line["event"] for line in site.log if line.get("group") == "growing"]

        wait_until(lambda: called(ready["target"], "own_pid") != [first])
        assert "worker comes near the memory of its group, which is replaced" in events()
        # The process grows after its answer: a call in a process that is killed would be made again, and kill the next.
        (second,) = called(ready["target"], "prepare_to_grow")
        (tmp_path / "growing.py.grow").touch()
        wait_until(lambda: "worker exceeds the memory of its group and is killed" in events())
        wait_until(lambda: called(ready["target"], "own_pid") != [second])
        metrics = page(ready, "/metrics")
        for action in ("replaced", "killed"):
            assert f'udf_memory_exceeded_total{{action="{action}",group="growing"}} 1.0' in metrics
