"""The short form of `make fuzz`, and random settings and access files."""

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.sql import SqlFuzzer
from tests.fuzz.wire import Fuzzer
from udf_server.base.errors import InvalidConfig
from udf_server.security.access import Access, access_rules
from udf_server.serving.config import load_config, settings

NAMES = [setting.name for setting in settings()]


async def test_odd_bytes_end_a_stream_with_a_typed_error_and_leave_nothing_behind():
    fuzzer = Fuzzer(seed=11)
    await fuzzer.run(1500)
    assert fuzzer.problems == []
    assert fuzzer.ends["PROTOCOL_VIOLATION"] > 100
    assert fuzzer.ends["finished"] > 100


def test_odd_queries_are_read_or_refused_with_a_reason():
    fuzzer = SqlFuzzer(seed=11)
    fuzzer.run(1500)
    assert fuzzer.problems == []
    assert fuzzer.ends["PlanError"] > 100
    assert fuzzer.ends["read"] > 100


@given(st.dictionaries(st.sampled_from([*NAMES, "nonsense", "functions", "guards"]), st.text(max_size=20), max_size=4))
def test_any_environment_is_a_configuration_or_a_clear_refusal(values):
    try:
        load_config(environment={f"UDF_CONFIG_{name.upper()}": text for name, text in values.items()})
    except InvalidConfig as error:
        assert any(name.lower() in str(error).lower() for name in values)


TOML = st.recursive(
    st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=10)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*NAMES, "functions", "guards", "x"]), TOML, max_size=4))
def test_any_values_of_a_file_are_a_configuration_or_a_clear_refusal(values):
    try:
        load_config(flags=values)
    except (InvalidConfig, TypeError) as error:
        # Unknown names are rejected when files are read, which this test skips.
        assert isinstance(error, InvalidConfig) or "x" in values


@given(st.binary(max_size=200))
def test_any_bytes_are_an_access_file_or_a_clear_refusal(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("access") / "access.toml"
    path.write_bytes(content)
    try:
        rules = access_rules(path)
    except InvalidConfig as error:
        assert str(path) in str(error)
    else:
        assert Access(rules).restricted


@given(st.text(max_size=300))
def test_no_odd_token_lets_anybody_in(tmp_path_factory, token):
    path = tmp_path_factory.mktemp("access") / "access.toml"
    path.write_text(f'[a]\ntoken_sha256 = "{"0" * 64}"\n')
    access = Access(access_rules(path))
    try:
        caller = access.identify([("authorization", f"Bearer {token}")], {}, "peer")
    except Exception as error:
        assert type(error).__name__ == "StreamError"
        assert len(token) < 8 or token not in str(error)
    else:
        raise AssertionError(caller)
