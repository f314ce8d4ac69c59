"""The limits of a server, divided among its worker processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_server.serving.config import AT_LEAST, ServerConfig, settings
from udf_server.serving.parts import divided_settings, parts


@given(st.data(), st.integers(2, 64))
def test_the_parts_of_all_processes_are_the_setting_or_less(data, processes):
    drawn = {name: data.draw(st.integers(AT_LEAST[name], 1 << 40), name) for name in divided_settings()}
    config = ServerConfig(**drawn)
    for name, part in parts(config, processes).items():
        assert part * processes <= drawn[name] or part == AT_LEAST[name]
        assert (part + 1) * processes > drawn[name]


def test_the_limits_of_one_process_are_the_settings():
    assert parts(ServerConfig(), 1) == {name: getattr(ServerConfig(), name) for name in divided_settings()}


@pytest.mark.parametrize(("url", "divided"), [("memory:", True), ("file:///x", False), ("redis://x", False)])
def test_only_a_cache_that_each_process_has_for_itself_is_divided(url, divided):
    assert ("cache_max_bytes" in parts(ServerConfig(cache_url=url), 4)) == divided


def test_every_setting_that_bounds_the_server_is_divided():
    """Those of a stream, of a message and of a function's calls in a process are not."""
    bounds = {setting.name for setting in settings() if setting.name.startswith(("max_", "cache_max_"))}
    of_a_stream = {"max_message_bytes", "max_stream_rows", "max_stream_bytes", "max_stream_result_bytes"}
    assert bounds - of_a_stream == set(divided_settings())
