"""`udf-server check --config`: everything that a server would refuse or warn of, in its own words, at once."""

import asyncio
import dataclasses

import pytest
from click.testing import CliRunner

from remote_udf.errors import RemoteUdfError
from udf_server.commands.checking import check_settings
from udf_server.commands.cli import main
from udf_server.serving.config import load_config
from udf_server.serving.server import running_server

PLUGIN = """
import udf_server as udf

@udf.scalar
def one(x: int) -> int:
    return x

@udf.scalar(timeout="5 s")
async def two(x: int) -> int:
    return x
"""
FAULTS = {
    "a setting's name": ("", 'prot = 5\n', "unknown setting 'prot', did you mean 'port'?"),
    "a number": ("", "drain_seconds = -1\n", "setting 'drain_seconds': -1.0 is less than 0"),
    "a choice": ("", 'log_format = "xml"\n', "setting 'log_format': 'xml' is not one of text, json"),
    "exposure": ("", 'host = "0.0.0.0"\n', "and would accept every caller"),
    "a certificate": ("", 'tls_certificate = "/no.crt"\ntls_key = "/no.key"\n', "cannot read /no.crt"),
    "the web UI": ("", "page = false\ntry_calls = true\n", "setting 'try_calls' needs 'page'"),
    "an access file": ("", 'access_file = "/no.toml"\n', "cannot read /no.toml"),
    "a cache": ("", 'cache_url = "redis:/x"\n', "setting 'cache_url' is not a valid URL of a Redis"),
    "a key": ("", 'cache_encryption_variable = "NO_KEY"\n', "variable NO_KEY does not have 32 bytes"),
    "coordination": ("", 'coordination_url = "http://x"\n', "'coordination_url' does not begin with redis:"),
    "an option's name": ("functions.one", "max-atempts = 2\n", "did you mean 'max-attempts'?"),
    "an option's value": ("functions.one", 'timeout = "soon"\n', "functions.one: option 'timeout': 'soon'"),
    "a guard's function": ("guards.tow", "max-concurrency = 2\n", "setting guards.tow: there is no such function"),
    "a guard's unit": ("guards.one", 'rate = "9 tokens/second"\n', "rate counts tokens, but the function is declared"),
    "a weight": ("weights", '"one@9" = "5 %"\n', 'setting weights."one@9": function one has no version 9'),
    "a caller": ("callers.jim", "share = -3\n", "setting callers.jim: option 'share': -3 is not"),
    "a group": ("groups.Geo", 'plugins = ["geo"]\n', "setting groups.Geo: not a name of a group"),
}  # fmt: skip


@pytest.fixture
def settings(tmp_path, plugin):
    path = plugin(PLUGIN)

    def write(*faults, plugins=(), more=""):
        named = ", ".join(repr(each) for each in (path, *plugins))
        text = f"plugin = [{named}]\nentry_points = false\n"
        tables = {}
        for table, lines, _ in faults:
            tables[table] = tables.get(table, "") + lines
        text += tables.pop("", "") + "".join(f"[{table}]\n{lines}" for table, lines in tables.items())
        file = tmp_path / "server.toml"
        file.write_text(text + more)
        return file

    return write


def at_start(file):
    """What the start of a server says; empty if it starts."""

    async def start():
        config = dataclasses.replace(load_config(file, {}), port=0, metrics_port=0)
        async with running_server(config):
            return ""

    try:
        return asyncio.run(start())
    except RemoteUdfError as error:
        return str(error)


def test_every_fault_of_a_file_is_found_at_once(settings):
    # With an access file the server is not exposed.
    planted = [fault for name, fault in FAULTS.items() if name != "exposure"]
    found = check_settings(settings(*planted, plugins=["/no.py"]), {})
    messages = [*(message for _, _, message in planted), "plugin '/no.py' cannot be imported"]
    assert [message for message in messages if not any(message in text for text in found.refused)] == []
    assert len(found.refused) == len(messages) == 17


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_has_the_message_of_the_start(settings, fault):
    file = settings(fault)
    found = check_settings(file, {})
    assert fault[-1] in found.refused[0] and found.refused == [at_start(file)]


def test_settings_that_need_each_other_are_no_fault(settings):
    more = '[guards.one]\nlatency-goal = "1 s"\nadaptive = true\n[weights]\n"one@1" = "100 %"\n'
    assert check_settings(settings(more=more), {}).refused == []
    found = check_settings(settings(more=more.replace("1 s", "soon").replace("100 %", "x %")), {})
    assert [text.partition(":")[0] for text in found.refused] == ["setting guards.one", 'setting weights."one@1"']


def test_what_a_server_warns_of_is_named(settings, plugin):
    more = (
        'allow_anonymous = true\nhost = "0.0.0.0"\n[functions.one]\nattempt-timeout = "1 s"\n'
        '[functions.tow]\ntimeout = "1 s"\n[functions."*"]\ntimeout = "9 s"\n'
    )
    found = check_settings(settings(more=more), {})
    assert found.refused == []
    first, *others = found.warned
    assert first == "every caller that reaches this address is served: host=0.0.0.0"
    assert [text.partition(": ")[2].split(":")[0] for text in others] == [
        "functions.one.attempt-timeout of one@1", "functions.tow", "functions.*.timeout of two@1"
    ]  # fmt: skip


def test_a_redis_that_does_not_answer_is_named_on_request(settings):
    more = (
        'cache_url = "redis://127.0.0.1:1"\ncoordination_url = "redis://127.0.0.1:1"\n[guards.one]\nrate = "9/second"\n'
    )
    file = settings(more=more)
    assert check_settings(file, {}).warned == []
    found = check_settings(file, {}, connect=True)
    assert [text.partition(":")[0] for text in found.warned] == [
        "cache is unavailable; functions are called without it", "guards and budgets are not coordinated"
    ]  # fmt: skip


def test_a_wrong_variable_of_the_environment_is_found(settings):
    assert "variable UDF_CONFIG_PROT" in check_settings(settings(), {"UDF_CONFIG_PROT": "1"}).refused[0]


def test_the_command_tells_and_its_status_says_whether_a_server_would_start(settings):
    file = settings()
    done = CliRunner().invoke(main, ["check", "--config", str(file)])
    assert (done.exit_code, done.output) == (0, f"{file}: functions: 2, refused: 0, warnings: 0\n")
    file = settings(FAULTS["a setting's name"], more="[functions.tow]\n")
    done = CliRunner().invoke(main, ["check"], env={"UDF_CONFIG_FILE": str(file)})
    refused, warning, summary = done.output.splitlines()
    assert done.exit_code == 1 and refused.startswith("refused: config file ")
    assert warning.startswith("warning: a setting has no effect: functions.tow: ")
    assert summary.endswith("functions: 2, refused: 1, warnings: 1")


def test_a_file_that_cannot_be_read_is_the_only_fault(tmp_path):
    (tmp_path / "server.toml").write_text("port = \n")
    [refused] = check_settings(tmp_path / "server.toml", {}).refused
    assert "config file" in refused and "line 1" in refused


@pytest.mark.slow
def test_functions_of_groups_count_and_a_group_that_cannot_be_loaded_is_named(settings, plugin):
    other = plugin(PLUGIN.replace("one", "three").replace("two", "four"), "other_udfs.py")
    tables = f'[guards.three]\nrate = "9/second"\n[groups.other]\nplugins = ["{other}"]\n'
    found = check_settings(settings(more=tables), {})
    assert (found.refused, found.functions) == ([], 4)
    found = check_settings(settings(more=f'{tables}[groups.bad]\nplugins = ["{plugin("1 / 0", "bad_udfs.py")}"]\n'), {})
    assert "group 'bad': its plugins cannot be loaded" in found.refused[0] and len(found.refused) == 1
    found = check_settings(settings(more=f'[groups.same]\nplugins = ["{plugin(PLUGIN, "same_udfs.py")}"]\n'), {})
    assert "function 'one@1' is in group 'default' and in group 'same'" in found.refused[0]
