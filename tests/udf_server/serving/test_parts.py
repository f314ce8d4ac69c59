"""The limits of a server, divided among its worker processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_server.security.callers import CallerSettings
from udf_server.serving.config import AT_LEAST, ServerConfig, settings
from udf_server.serving.cores import divided_settings, part_of


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


def test_limits_of_callers_are_divided_and_what_they_share_is_not():
    callers = {"etl": CallerSettings(share=3, max_streams=400, max_rows_in_flight=1001), "*": CallerSettings(share=2)}
    found = part_of(ServerConfig(callers=callers), 4).callers
    assert found["etl"] == CallerSettings(share=3, max_streams=100, max_rows_in_flight=250)
    assert found["*"] == callers["*"]
    assert part_of(ServerConfig(callers={"a": CallerSettings(max_streams=2)}), 4).callers["a"].max_streams == 1


def test_streams_are_divided_in_each_group_because_all_of_them_pass_the_default_group():
    config = ServerConfig(callers={"etl": CallerSettings(max_streams=400, max_rows_in_flight=1000)})
    part = part_of(config, 4, 1)
    assert (part.max_streams, part.max_connections) == (config.max_streams, config.max_connections)
    assert part.max_server_bytes == config.max_server_bytes // 4
    assert part.callers["etl"] == CallerSettings(max_streams=400, max_rows_in_flight=250)
    assert part_of(config, 4, 2).max_streams == config.max_streams // 2


@pytest.mark.parametrize(("url", "part"), [("memory:", 1 << 20), ("file:///x", 4 << 20), ("redis://x", 4 << 20)])
def test_only_a_cache_that_each_process_has_for_itself_is_divided(url, part):
    assert part_of(ServerConfig(cache_url=url, cache_max_bytes=4 << 20), 4).cache_max_bytes == part


def test_every_setting_that_bounds_the_server_is_divided():
    """Those of a stream, of a message and of a function's calls in a process are not."""
    bounds = {setting.name for setting in settings() if setting.name.startswith(("max_", "cache_max_"))}
    of_a_stream = {"max_message_bytes", "max_stream_rows", "max_stream_bytes", "max_stream_result_bytes"}
    assert bounds - of_a_stream == set(divided_settings())
