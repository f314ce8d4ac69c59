"""The number of worker processes: that of the setting, or the whole cores of a limit of CPU time."""

import os

import pytest

from udf_server.serving.config import ServerConfig
from udf_server.serving.resources import limited_cores, worker_processes


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of 8 cores that this process may all use, with the files of control groups that a test writes."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)

    return tmp_path


def of(root, group, files):
    """Write the groups of this process, and files of groups by their path below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(group)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(("quota", "cores"), [("400000 100000", 4), ("350000 100000", 3), ("20000 100000", 1)])
def test_a_quota_of_version_2_gives_whole_cores_and_at_least_one(machine, quota, cores):
    assert limited_cores(of(machine, "0::/\n", {"cpu.max": quota})) == cores


def test_without_a_quota_nothing_is_limited_however_many_cores_there_are(machine):
    assert limited_cores(of(machine, "0::/\n", {"cpu.max": "max 100000"})) is None
    assert limited_cores(of(machine, "1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "1"})) is None


def test_the_smallest_quota_of_the_groups_around_this_one_counts(machine):
    files = {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000", "a/b/c/cpu.max": "600000 100000"}
    assert limited_cores(of(machine, "0::/a/b/c\n", files)) == 3
    assert limited_cores(of(machine, "0::/a/b\n", files)) == 3


def test_a_quota_of_version_1_is_read_where_the_container_sees_it(machine):
    group = "3:cpuset:/docker/1\n2:cpu,cpuacct:/docker/1\n1:memory:/docker/1\n0::/\n"
    files = {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert limited_cores(of(machine, group, files)) == 2


@pytest.mark.parametrize("group", ["", "nothing\n", "0::/../../x\n"])
@pytest.mark.parametrize("quota", ["", "max", "1 0", "x y", "1 2 3"])
def test_files_that_are_not_understood_limit_nothing(machine, group, quota):
    assert limited_cores(of(machine, group, {"cpu.max": quota})) is None


def test_a_system_without_control_groups_limits_nothing(machine):
    assert limited_cores(machine) is None


def test_an_affinity_to_some_of_the_cores_is_a_limit(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5})
    assert limited_cores(machine) == 2
    assert limited_cores(of(machine, "0::/\n", {"cpu.max": "400000 100000"})) == 2
    assert limited_cores(of(machine, "0::/\n", {"cpu.max": "100000 100000"})) == 1


def test_a_server_has_a_process_for_each_core_of_the_limit_unless_the_setting_says_otherwise(machine):
    limited = of(machine, "0::/\n", {"cpu.max": "400000 100000"})
    assert worker_processes(ServerConfig(), limited) == 4
    assert worker_processes(ServerConfig(processes=2), limited) == 2
    assert worker_processes(ServerConfig(unix_socket="/tmp/x.sock"), limited) == 1
    assert worker_processes(ServerConfig(devices=("0", "1", "2")), limited) == 3


def test_a_server_without_a_limit_has_one_process(machine):
    assert worker_processes(ServerConfig(), machine) == 1
