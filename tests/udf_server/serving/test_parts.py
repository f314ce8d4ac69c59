"""The limits of a server, divided among its worker processes."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_server.security.callers import CallerSettings
from udf_server.serving.config import AT_LEAST, ServerConfig, settings
from udf_server.serving.groups import GroupSettings
from udf_server.serving.resources import divided_settings, part_of


@given(st.data(), st.integers(2, 64))
def test_the_parts_of_all_processes_are_the_setting_or_less(data, processes):
    drawn = {name: data.draw(st.integers(AT_LEAST[name], 1 << 40), name) for name in divided_settings()}
    part = part_of(ServerConfig(**drawn), processes)
    for name, whole in drawn.items():
        assert getattr(part, name) * processes <= whole or getattr(part, name) == AT_LEAST[name]
        assert (getattr(part, name) + 1) * processes > whole


@pytest.mark.parametrize("config", [ServerConfig(), ServerConfig(callers={"etl": CallerSettings(max_streams=7)})])
def test_one_process_has_the_settings_of_the_server(config):
    assert part_of(config, 1) == config


def test_rows_of_callers_are_divided_and_what_they_share_is_not():
    callers = {"etl": CallerSettings(share=3, max_streams=400, max_rows_in_flight=1001), "*": CallerSettings(share=2)}
    found = part_of(ServerConfig(callers=callers), 4).callers
    assert found["etl"] == CallerSettings(share=3, max_streams=400, max_rows_in_flight=250)
    assert found["*"] == callers["*"]
    few = ServerConfig(callers={"a": CallerSettings(max_rows_in_flight=2)})
    assert part_of(few, 4).callers["a"].max_rows_in_flight == 1


def with_groups(**tables):
    return ServerConfig(groups={name: GroupSettings(plugins=("a",), **table) for name, table in tables.items()})


def test_connections_are_divided_in_each_group_and_streams_are_counted_over_all():
    callers = {"etl": CallerSettings(max_streams=400, max_rows_in_flight=1000)}
    config = dataclasses.replace(with_groups(geo={"processes": 2}, old={}), callers=callers)
    for group, connections in (("default", config.max_connections), ("geo", config.max_connections // 2)):
        part = part_of(config, 1, group)
        assert (part.max_streams, part.max_connections) == (config.max_streams, connections)
        assert part.max_server_bytes == config.max_server_bytes // 4
        assert part.callers["etl"] == CallerSettings(max_streams=400, max_rows_in_flight=250)


GROUPS = st.dictionaries(
    st.sampled_from("abcd"),
    st.fixed_dictionaries({
        "processes": st.integers(1, 4),
        "memory": st.none() | st.integers(1, 1 << 40),
        "max_server_bytes": st.none() | st.integers(1 << 20, 1 << 40),
    }),
)  # fmt: skip


@given(GROUPS, st.integers(1, 8))
def test_bytes_are_divided_by_memory_among_the_processes_without_bytes_of_their_own(tables, number):
    config = with_groups(**tables)
    numbers = {"default": number, **{name: table["processes"] for name, table in tables.items()}}
    parts = {name: part_of(config, number, name).max_server_bytes for name in numbers}
    own = {name: table["max_server_bytes"] for name, table in tables.items() if table["max_server_bytes"]}
    assert {name: parts[name] for name in own} == {name: own[name] // numbers[name] for name in own}
    others = [name for name in numbers if name not in own]
    least = AT_LEAST["max_server_bytes"]
    assert sum((parts[name] - least) * numbers[name] for name in others) <= config.max_server_bytes
    sized = {name: tables[name]["memory"] / numbers[name] for name in others if tables.get(name, {}).get("memory")}
    for a, b in itertools.combinations(sized, 2):
        if min(parts[a], parts[b]) > least:
            assert parts[a] / parts[b] == pytest.approx(sized[a] / sized[b], rel=1e-3)


def test_a_process_without_memory_counts_like_the_average_one_with_memory():
    config = with_groups(geo={"memory": 6 << 30, "processes": 2}, models={"memory": 9 << 30}, old={})
    mb = {name: part_of(config, 1, name).cache_max_bytes >> 20 for name in ("default", "geo", "models", "old")}
    assert mb == {"default": 51, "geo": 30, "models": 92, "old": 51}
    assert part_of(with_groups(geo={"cache_max_bytes": 1 << 20}), 1, "geo").cache_max_bytes == 1 << 20


@pytest.mark.parametrize(("url", "part"), [("memory:", 1 << 20), ("file:///x", 4 << 20), ("redis://x", 4 << 20)])
def test_only_a_cache_that_each_process_has_for_itself_is_divided(url, part):
    assert part_of(ServerConfig(cache_url=url, cache_max_bytes=4 << 20), 4).cache_max_bytes == part


def test_every_setting_that_bounds_the_server_is_divided():
    """Those of a stream, of a message and of a function's calls in a process are not; streams are counted over all."""
    bounds = {setting.name for setting in settings() if setting.name.startswith(("max_", "cache_max_"))}
    of_a_stream = {"max_message_bytes", "max_stream_rows", "max_stream_bytes", "max_stream_result_bytes"}
    counted = {"max_streams", "max_streams_per_caller"}
    assert bounds - of_a_stream - counted == set(divided_settings())
