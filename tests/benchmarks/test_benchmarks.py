"""The benchmarks run, and write what they promise. What the numbers are is not for a test to say."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.guard import EXPECTED, compare

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # each starts Spark, and a busy machine is slow

PROMISED = {
    "io_1000_fraction_of_ideal",
    "rowwise_dispatch_ns",
    "look_ups_beside_stuck",
    "look_ups_beside_flooded",
    "vectorized_vs_local_arrow_udf",
    "unordered_vs_ordered_1pct_stragglers",
    "rss_growth_1m_to_20m",
    "chain_of_two_vs_one",
    "three_calls_vs_pyspark_three_udfs",
    "forty_calls_select_vs_sql",
}
PROMISED_OF_AGGREGATES = {
    "hot_key_50m_rows_rss_growth",
    "vectorized_unique_keys_vs_builtin",
    "sorted_unique_keys_vs_builtin",
    *(
        f"{way}_{shape}_vs_{other}"
        for way, shape in (
            *itertools.product(("vectorized", "bundled", "classic"), ("100k_keys", "100_keys")),
            ("vectorized", "20m_rows_1m_keys"),
        )
        for other in ("pandas_udf", "map_in_arrow_identity", "builtin")
    ),
}
PROMISED_OF_WINDOWS = {
    "tumble_assign_vs_spark_window",
    "tumble_remote_avg_vs_plain_key",
    "tumble_remote_avg_vs_builtin",
    "hop_12_panes_vs_tumble",
    "stream_events_per_minute",
    "stream_rss_growth",
}
PROMISED_OF_PEERS = {
    *(
        f"{what}_vs_{peer}{unit}"
        for what in ("io_1000", "rowwise", "vectorized")
        for peer in ("arrow_udf", "databend_udf")
        for unit in ("", "_per_cpu_second")
    ),
    "vectorized_vs_local_arrow_udf",
    "vs_pandas_gather",
    "vs_blocking_udf",
    "vs_arrow_concurrency_level",
}
PROMISED_OF_MODELS = {
    "bare_1000_in_flight_share_of_ideal", "complete_1000_in_flight_share_of_ideal", "complete_server_cpu",
    "kill_and_rerun_calls", "cascade_dear_calls_share", "cascade_right_share",
}  # fmt: skip
PROMISED_OF_HTTP = {
    "plugin_look_ups_per_core", "plugin_cpu", "look_ups_per_core_vs_bare_uvloop", "look_ups_per_core_vs_bare_asyncio",
}  # fmt: skip
PROMISED_OF_GROUPS = {
    "scrape_kB_36_functions", "scrape_samples_36_functions",
    *(f"edit_to_result_over_import_{way}" for way in ("embedded", "dev", "local")),
    *(f"{what}_200_functions" for what in ("loaded_threads", "loaded_mb", "called_threads", "called_mb")),
    *(f"scrape_{what}_200_{state}" for what in ("cpu_seconds", "seconds", "kB") for state in ("functions", "called")),
}  # fmt: skip
PROMISED_OF_BATCHING = {
    "merged_vs_per_stream",
    "merged_share_of_ideal",
    "p99_added_delay_low_load",
    "dispatch_ns_per_row",
    "hedged_ordered_job_speedup",
    "hedged_extra_calls",
    "hedged_extra_calls_overload",
}
PROMISED_OF_TABLES = {
    "batch_vs_apply_in_pandas",
    "batch_vs_transform_with_state",
    "stream_vs_apply_in_pandas_with_state",
    "stream_vs_transform_with_state",
}


PROMISED_OF_LIMITS = {
    *(f"{what}_{count}_fraction_of_ideal" for what in ("look_ups", "bare_loop") for count in (100, 1000, 4000)),
    *(
        f"{name}{suffix}"
        for suffix in ("", "_64k")
        for name in (
            "vectorized_vs_socket_echo",
            "vectorized_vs_local_arrow_udf",
            "vectorized_vs_map_in_arrow",
            "cpu_ns_ours_server",
            "cpu_ns_ours_worker",
            "cpu_ns_ours_jvm",
        )
    ),
}
PROMISED_OF_PARQUET = {
    *(f"local_arrow_udf_cpu_over_ours_{name}" for name in ("two_longs", "20_byte_strings", "four_columns_beside")),
    "average_100_keys_vs_builtin_cpu",
    "average_100_keys_vs_pandas_udf",
    "columnar_input_on_over_off",
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=580, env=as_jobs())


def numbers_of(suite: str, folder: Path, promised: set[str]) -> dict[str, float]:
    """The numbers that a suite writes. It writes and prints those that are promised."""
    done = run("--suite", suite, "--quick", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    numbers: dict[str, float] = json.loads((folder / f"{suite}.json").read_text())
    assert set(numbers) >= promised
    assert all(name in done.stdout for name in promised)
    return numbers


def as_jobs() -> dict[str, str]:
    """The environment without what `make test-all` sets for short queries."""
    return {name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}


def test_the_scalar_suite_writes_its_numbers(tmp_path: Path):
    numbers = numbers_of("scalar", tmp_path, PROMISED)
    assert all(isinstance(number, float) for number in numbers.values())


def test_the_aggregate_suite_writes_its_numbers(tmp_path: Path):
    numbers = numbers_of("aggregate", tmp_path, PROMISED_OF_AGGREGATES)
    assert all(isinstance(number, float) for number in numbers.values())


def test_the_window_suite_writes_its_numbers(tmp_path: Path):
    assert numbers_of("window", tmp_path, PROMISED_OF_WINDOWS)["stream_events_per_minute"] > 0


def test_the_table_suite_writes_its_numbers(tmp_path: Path):
    assert numbers_of("process", tmp_path, PROMISED_OF_TABLES)["stream_keys_per_second"] > 0


def test_the_parquet_suite_writes_its_numbers(tmp_path: Path):
    numbers_of("parquet", tmp_path, PROMISED_OF_PARQUET)


def test_the_suite_of_peers_writes_its_numbers(tmp_path: Path):
    """The first run installs the peers, which takes a network."""
    done = run("--suite", "peers", "--quick", "--output", str(tmp_path))
    if "pip" in done.stderr and "CalledProcessError" in done.stderr:
        pytest.skip("the peers cannot be installed here")
    assert done.returncode == 0, done.stderr
    assert set(json.loads((tmp_path / "peers.json").read_text())) >= PROMISED_OF_PEERS


def test_the_suite_of_limits_writes_its_numbers(tmp_path: Path):
    assert 0 < numbers_of("limits", tmp_path, PROMISED_OF_LIMITS)["look_ups_100_fraction_of_ideal"] <= 1


def test_the_suite_of_common_calls_writes_its_numbers(tmp_path: Path):
    assert numbers_of("batching", tmp_path, PROMISED_OF_BATCHING)["merged_vs_per_stream"] > 2


def test_the_suite_of_models_writes_its_numbers(tmp_path: Path):
    assert 1 <= numbers_of("models", tmp_path, PROMISED_OF_MODELS)["kill_and_rerun_calls"] <= 1.02


def test_the_suite_of_http_writes_its_numbers(tmp_path: Path):
    assert numbers_of("http", tmp_path, PROMISED_OF_HTTP)["plugin_look_ups_per_core"] > 0


def test_the_suite_of_groups_writes_its_numbers(tmp_path: Path):
    assert numbers_of("groups", tmp_path, PROMISED_OF_GROUPS)["scrape_kB_36_functions"] <= 120


def test_the_suite_of_planning_writes_its_numbers(tmp_path: Path):
    promised = {"extra_seconds_scalar", "extra_seconds_aggregate", "extra_seconds_process"}
    assert numbers_of("planning", tmp_path, promised)["cold_seconds_scalar"] > 0


def test_the_suite_of_plain_spark_writes_its_numbers(tmp_path: Path):
    aggregates = {"group_by_100_keys_vs_arrow_udf", "group_by_100_keys_vs_remote_group_by"}
    numbers_of("plain_sql", tmp_path, {*aggregates, "table_function_vs_remote_sql"})


def test_the_queries_of_udfbench_have_equal_rows_on_both_sides(tmp_path: Path):
    numbers = numbers_of("udfbench", tmp_path, {f"q{number}_wall_ratio" for number in range(1, 22)})
    assert numbers["geomean_wall_ratio_vs_pyspark"] <= numbers["worst_wall_ratio_vs_pyspark"]


def test_the_guard_fails_for_a_ratio_that_lost_more_than_its_tolerance():
    lines, worse = compare({"a": 0.71, "b": 0.69, "c": 2.0}, {"a": 1.0, "b": 1.0, "c": 1.0})
    assert worse == ["b"]
    assert [line.split()[-1] for line in lines] == ["-29%", "-31%", "+100%"]


def test_the_guard_expects_what_it_measures():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.guard", "--rows", "2000"],
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
        env=as_jobs(),
    )
    # A worker that Spark ends may write the first line of a traceback; a busy machine is slower than what is committed.
    last = (done.stderr.strip().splitlines() or [""])[-1]
    assert done.returncode == 0 or last.startswith("slower than what is committed"), done.stderr
    measured = {line.split()[0] for line in done.stdout.splitlines() if "expected" in line}
    assert measured == set(json.loads(EXPECTED.read_text()))
