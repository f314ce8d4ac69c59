"""Settings: precedence, values, and invalid settings."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_server.base.errors import InvalidConfig
from udf_server.serving.config import ENVIRONMENT_PREFIX, ServerConfig, load_config, settings


def test_without_anything_the_defaults_hold():
    assert load_config() == ServerConfig()


def test_a_flag_wins_over_the_environment_which_wins_over_the_file(toml):
    file = toml("port = 1\nmax-streams = 1\ndrain_seconds = 1.5\n")
    environment = {"UDF_CONFIG_PORT": "2", "UDF_CONFIG_MAX_STREAMS": "2", "OTHER": "x"}
    config = load_config(file, environment, {"port": "3", "host": None, "plugin": ()})
    assert (config.port, config.max_streams, config.drain_seconds) == (3, 2, 1.5)
    assert config.host == "127.0.0.1"


@given(st.fixed_dictionaries({}, optional={name: st.integers(1, 60_000) for name in ("flag", "env", "file")}))
def test_the_first_source_that_sets_it_wins(sources):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "c.toml")
        file.write_text(f"port = {sources['file']}" if "file" in sources else "")
        environment = {"UDF_CONFIG_PORT": str(sources["env"])} if "env" in sources else {}
        config = load_config(file, environment, {"port": sources.get("flag")})
    expected = next((sources[name] for name in ("flag", "env", "file") if name in sources), 50051)
    assert config.port == expected


def test_every_setting_but_tables_may_come_from_the_environment():
    values = {int: "7", float: "7", str: "debug"}
    for setting in settings():
        text = values.get(type(setting.default), "a,b" if setting.default == () else "x")
        text = str(not setting.default).lower() if isinstance(setting.default, bool) else text
        text = {
            "log_format": "json",
            "entry_points": "true",
            "devices": "xpu:0,xpu:1",
            "budgets_without_coordination": "fail-open",
            "max_message_bytes": "70000",
            "max_stream_bytes": "70000",
            "max_stream_result_bytes": "70000",
            "max_server_bytes": "70000",
            "cache_max_bytes": "70 kB",
        }.get(setting.name, text)
        config = load_config(environment={ENVIRONMENT_PREFIX + setting.name.upper(): text})
        assert getattr(config, setting.name) != setting.default


def test_every_setting_says_what_it_is():
    assert [field.name for field in dataclasses.fields(ServerConfig) if not field.metadata.get("doc")] == []


def test_lists_are_separated_by_commas_or_are_lists(toml):
    assert load_config(environment={"UDF_CONFIG_PLUGIN": "a, b ,c"}).plugin == ("a", "b", "c")
    assert load_config(toml('plugin = ["a", "b"]')).plugin == ("a", "b")
    assert load_config(environment={"UDF_CONFIG_PLUGIN": ""}).plugin == ()


def test_options_of_functions_stand_in_the_file(toml):
    config = load_config(toml('[functions."*"]\ntimeout = "5 s"\n[functions.geocode]\nmax_attempts = 7\n'))
    assert config.functions == {"*": {"timeout": "5 s"}, "geocode": {"max-attempts": "7"}}


WRONG = [
    ("prot = 1", "unknown setting 'prot', did you mean 'port'?.*known: access_file"),
    ('port = "many"', "setting 'port': 'many' is not valid"),
    ("port = 1.5", "setting 'port': 1.5 is not valid"),
    ("port = true", "setting 'port': True is not valid"),
    ("port = -1", "setting 'port': -1 is less than 0"),
    ("port = 70000", "setting 'port': 70000 is not a port"),
    ("host = 5", "setting 'host': 5 is not valid"),
    ("drain_seconds = nan", "setting 'drain_seconds': nan is not valid"),
    ("drain_seconds = inf", "setting 'drain_seconds': inf is not valid"),
    ("drain_seconds = -1", "less than 0"),
    ("max_streams = 0", "setting 'max_streams': 0 is less than 1"),
    ("max_message_bytes = 5", "less than 65536"),
    ('max_message_bytes = "0.5 B"', "setting 'max_message_bytes': '0.5 B' is less than one byte"),
    ("plugin = 5", "setting 'plugin': 5 is not valid"),
    ("plugin = [5]", "setting 'plugin'"),
    ("entry_points = 5", "setting 'entry_points'"),
    ('entry_points = "maybe"', "setting 'entry_points': 'maybe'"),
    ('log_level = "loud"', "setting 'log_level': 'loud' is not one of debug, info"),
    ('log_format = "xml"', "setting 'log_format': 'xml' is not one of text, json"),
    ("functions = 5", "setting 'functions'"),
    ("[functions]\ngeocode = 5", "setting 'functions'"),
    ('[functions.geocode]\ntime = "1 s"', "setting functions.geocode: unknown option 'time'"),
    ('[functions.geocode]\ntimeout = "soon"', "setting functions.geocode: option 'timeout'"),
    ('[functions.geocode]\non_error = "null"', "unknown option 'on_error'"),
    ("port = ", "config file .*server.toml"),
    ("max-streams = 1\nmax_streams = 2", "setting 'max_streams' is there twice, as 'max-streams' and 'max_streams'"),
    (
        'cache_url = "memory:"\n[cache]\nurl = "file:///a"',
        "'cache_url' is there twice, as 'cache_url' and '.cache. url'",
    ),
    ('[functions.f]\nat-most.output-mode = "ordered"', "functions.f: unknown option 'at-most.output-mode'"),
    ('[functions.f]\nat-most.timeout = "soon"', "functions.f: option 'at-most.timeout'"),
    ("[functions.f]\nat-most = 5", "functions.f: unknown option 'at-most'"),
    ("[functions.f]\nmax_attempts = 1\nmax-attempts = 2", "functions.f: option 'max-attempts' is there twice"),
    ("[guards.f]\nmax_concurrency = 1\nmax-concurrency = 2", "guards.f: option 'max-concurrency' is there twice"),
    ("[callers.a]\nbudgets = {usd = 1}", "did you mean 'budget'.*known: budget, max-rows-in-flight"),
]


@pytest.mark.parametrize(("text", "why"), WRONG)
def test_a_setting_that_makes_no_sense_is_refused(toml, text, why):
    with pytest.raises(InvalidConfig, match=why):
        load_config(toml(text))


TEXTS = [setting.name for setting in settings() if setting.type in (str, str | None)]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_text_is_not_taken_for_a_setting_that_is_left_out(name, empty):
    with pytest.raises(InvalidConfig, match=f"setting '{name}': '{empty}'"):
        load_config(environment={ENVIRONMENT_PREFIX + name.upper(): empty})


def test_settings_that_may_be_empty_texts_are_all_tried():
    assert {"host", "metrics_host", "access_file", "tls_client_ca", "cache_encryption_variable"} <= set(TEXTS)


@pytest.mark.parametrize("name", ["UDF_CONFIG_PROT", "UDF_CONFIG_FUNCTIONS", "UDF_CONFIG_"])
def test_an_unknown_variable_is_refused_and_named(name):
    with pytest.raises(InvalidConfig, match=f"environment variable {name}: unknown setting"):
        load_config(environment={name: "1"})


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(InvalidConfig, match=r"config file /no/such.toml: .*No such file"):
        load_config("/no/such.toml")


def test_the_functions_of_the_file_reach_the_calls(toml):
    import asyncio

    import udf_server as udf
    from udf_server.hosting.registry import FunctionHost, Registry

    @udf.scalar(max_attempts=4)
    async def geocode(a: int) -> int:
        return a

    config = load_config(
        toml('[functions."*"]\ntimeout = "5 s"\nmax-attempts = 9\n[functions.geocode]\ntimeout = "6 s"')
    )

    async def options():
        host = FunctionHost(Registry([("test", geocode)]), defaults=config.functions)
        return host.find("geocode").options.scalar({"batch-rows": "10"})

    found = asyncio.run(options())
    # The call, then the function's table, then the declaration, then everybody's.
    assert (found.batch_rows, found.max_attempts, found.timeout) == (10, 4, 6.0)


def test_caps_are_a_table_of_a_functions_options(toml):
    config = load_config(toml('[functions."*"]\nat-most.timeout = "60 s"\n[functions.f.at_most]\nmax_attempts = 2'))
    assert config.functions == {"*": {"at-most.timeout": "1 min"}, "f": {"at-most.max-attempts": "2"}}
