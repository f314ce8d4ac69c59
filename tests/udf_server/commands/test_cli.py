"""The command line, run in this process: functions, describe, call, check, and their errors."""

import json
import logging
import sys

import pytest
from click.testing import CliRunner

from remote_udf.version import __version__
from udf_server.commands.cli import main
from udf_server.commands.shown import listed, shown_of
from udf_server.hosting.registry import Registry
from udf_server.plugins.loading import build_plugin_manager, load_functions

PLUGIN = '''
import datetime, decimal
from dataclasses import dataclass
import udf_server as udf

@dataclass
class Point:
    lat: float
    lon: float

@udf.scalar(timeout="2 s", nulls="skip", deterministic=False)
async def geocode(address: str, limit: int = 3) -> Point:
    """Where an address lies.

    In detail.
    """
    if address == "nowhere":
        raise LookupError("no such place")
    return Point(float(len(address)), float(limit))

@udf.scalar
def double(a: int | str) -> str:
    return f"{a}{a}"

@udf.scalar(name="double", version="2")
def double_two(a: int) -> int:
    return a * 2

@udf.scalar
def later(when: datetime.date, by: decimal.Decimal) -> str:
    return f"{when + datetime.timedelta(days=int(by))}"

@udf.scalar
def total(values: list[int]) -> int:
    return sum(values)

@udf.scalar
def counts(text: str) -> dict[str, int]:
    return {letter: text.count(letter) for letter in text}

@udf.scalar
def by_day(when: datetime.date) -> dict[datetime.date, list[int]]:
    return {when: [1]}

@udf.scalar(deterministic=False)
def one() -> int:
    return 1

class Span(udf.AggregateFunction):
    """From first to last."""

    def create_accumulator(self) -> list[datetime.date]:
        return []

    def accumulate(self, accumulator, day: datetime.date, weight: decimal.Decimal = 1):
        if not weight:
            raise ValueError("without weight")
        accumulator.append(day)

    def merge(self, accumulator, others):
        accumulator += sum(others, [])

    def get_value(self, accumulator) -> dict[str, datetime.date]:
        return {"first": min(accumulator), "last": max(accumulator)}
'''


@pytest.fixture(autouse=True)
def _path_is_put_back(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in __import__("os").environ if name.startswith("UDF_CONFIG_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _log_is_put_back():
    log = logging.getLogger("udf_server")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture
def run(plugin):
    path = plugin(PLUGIN)

    def invoke(*arguments, with_plugin=True, env=None):
        extra = ["--plugin", path, "--no-entry-points"] if with_plugin else []
        return CliRunner().invoke(main, [arguments[0], *extra, *arguments[1:]], env=env)

    invoke.path = path
    return invoke


def test_functions_lists_every_version(run):
    result = run("functions")
    assert result.exit_code == 0
    header, *lines = result.stdout.splitlines()
    assert header.split() == ["FUNCTION", "VERSION", "PLUGIN"]
    assert any(line.startswith("geocode(address string, limit bigint = ...)") for line in lines)
    assert sum(line.startswith("double(") for line in lines) == 2
    assert any(line.endswith("Where an address lies.") for line in lines)


def test_a_long_signature_moves_only_its_own_line(run, plugin):
    names = ", ".join(f"parameter_{n}: int" for n in range(20))
    path = plugin(f"import udf_server as udf\n@udf.scalar\ndef long({names}) -> int: ...\n", "long_udfs.py")
    header, *lines = run("functions", "--plugin", path).stdout.splitlines()
    assert header.index("VERSION") == 66
    [moved] = [line for line in lines if len(line.partition(")")[0]) > 200]
    assert "parameter_19 bigint) -> bigint  1  " in moved
    assert {line[64:69] for line in lines if line.startswith(("double", "total", "one"))} == {"  1  ", "  2  "}


def test_functions_shows_the_options_of_one_and_their_sources(run, tmp_path):
    file = tmp_path / "server.toml"
    file.write_text('[functions."*"]\nmax-attempts = 5\n[functions.geocode]\nbuffer-capacity = 7\n')
    lines = run("functions", "--config", str(file), "--options", "geocode").stdout.splitlines()
    assert lines[0].startswith("geocode(address string")
    found = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    assert found["max-attempts"] == ["5", 'functions."*"']
    assert found["buffer-capacity"] == ["7", "functions.geocode"]
    assert found["timeout"] == ["2", "s", "declaration"]


def test_a_call_has_the_options_of_the_file(run, tmp_path, plugin):
    path = plugin(
        "import udf_server as udf\n@udf.scalar(max_attempts=1)\n"
        "def tried(x: int, context: udf.CallContext) -> int:\n"
        "    if context.attempt < 2: raise udf.RetryableError('again')\n"
        "    return context.attempt\n",
        "tried_udfs.py",
    )
    file = tmp_path / "server.toml"
    file.write_text("[functions.tried]\nmax-attempts = 2\n")
    assert "again" in run("call", "--plugin", path, "tried", "1").output
    assert run("call", "--plugin", path, "--config", str(file), "tried", "1").stdout == "2\n"


def test_functions_are_listed_for_programs_as_lines_of_json(run):
    lines = [json.loads(line) for line in run("functions", "--json").stdout.splitlines()]
    [geocode] = [line for line in lines if line["name"] == "geocode"]
    assert geocode == {
        "name": "geocode", "version": "1", "kind": "scalar", "plugin": run.path, "owner": "",
        "signature": "geocode(address string, limit bigint = ...) -> struct<lat:double,lon:double>",
        "description": "Where an address lies.\n\nIn detail.",
    }  # fmt: skip
    assert [line["version"] for line in lines if line["name"] == "double"] == ["1", "2"]


def test_describe_tells_everything(run):
    text = run("describe", "geocode").stdout
    for part in ("geocode(address string", "In detail.", "skip", "timeout=2 s", "async-rows", run.path, "no"):
        assert part in text


def test_describe_tells_what_an_aggregate_function_keeps_and_supports(run):
    text = run("describe", "span").stdout
    assert "accumulator:   array<date>\nsupports:      merging\n" in text


@pytest.mark.parametrize(("name", "version"), [("double", "2"), ("double@1", "1"), ("double@2", "2")])
def test_describe_takes_a_version(run, name, version):
    assert f"version:       {version}\n" in run("describe", name).stdout


CALLS = [
    (["double@2", "21"], 42),
    (["double@2", "-21"], -42),
    (["double@1", "5"], "55"),
    (["double@1", "x"], "xx"),
    (["double@2", "null"], "error"),
    (["geocode", "Main St", "7"], {"lat": 7.0, "lon": 7.0}),
    (["geocode", '"quoted"'], {"lat": 6.0, "lon": 3.0}),
    (["geocode", "1234"], {"lat": 4.0, "lon": 3.0}),
    (["geocode", "null"], None),
    (["later", "2024-02-28", "2"], "2024-03-01"),
    (["total", "[1, 2, 3]"], 6),
    (["counts", "aab"], {"a": 2, "b": 1}),
    (["by_day", "2024-02-28"], {"2024-02-28": [1]}),
    (["one"], 1),
    (["span", "2024-02-29", "1.5"], {"first": "2024-02-29", "last": "2024-02-29"}),
    (["span", "2024-02-29", "0"], "error"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"), CALLS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_call_prints_the_value_as_json(run, arguments, expected):
    result = run("call", *arguments)
    if expected == "error":
        assert result.exit_code == 1
        return
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == expected


def test_a_call_that_fails_says_why_and_where(run):
    result = run("call", "geocode", "nowhere")
    assert result.exit_code == 1
    assert "FUNCTION_ERROR: LookupError: no such place" in result.stderr
    assert "in geocode" in result.stderr
    assert result.stdout == ""


def test_a_call_that_is_refused_prints_what_is_wrong_and_nothing_of_the_log(run, caplog):
    result = run("call", "double@2", "text")
    assert result.stderr == (
        "Error: ARGUMENT_TYPE: function double@2, parameter 'a': expected bigint, found string; cast the argument: "
        "double(a bigint) -> bigint\n"
    )
    assert caplog.records == []


def test_check_says_that_nothing_is_wrong(run):
    result = run("check", run.path, with_plugin=False)
    assert result.exit_code == 0
    assert result.stdout.endswith(f"{run.path}: 9 functions, nothing wrong\n")


FAILURES = [
    (["describe", "nothing"], "no function 'nothing' (known: by_day, counts, double"),
    (["describe", "double@9"], "function 'double' has no version '9' (known: 1, 2)"),
    (["describe", "not a name"], "'not a name' is not a function name"),
    (["call", "double@2"], "ARGUMENT_COUNT"),
    (["call", "double@2", "1", "2"], "ARGUMENT_COUNT"),
    (["call", "double@2", "text"], "ARGUMENT_TYPE"),
    (["functions", "--plugin", "no_such_module"], "no_such_module"),
    (["functions", "--config", "/no/such.toml"], "config file /no/such.toml"),
    (["serve", "--port", "many"], "setting 'port': 'many' is not valid"),
    (["serve", "--port", "-1"], "setting 'port': -1 is less than 0"),
    (["serve", "--log-level", "loud"], "setting 'log_level'"),
]


@pytest.mark.parametrize(
    ("arguments", "why"), FAILURES, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_an_error_is_one_line_and_no_traceback(run, arguments, why):
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert why in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("x = 1", "has neither"),
        ("import udf_server as u\n@u.scalar\ndef f(a): ...", "'a'"),
    ],
)
def test_check_names_what_is_wrong(plugin, text, why):
    path = plugin(text)
    result = CliRunner().invoke(main, ["check", path])
    assert result.exit_code == 1
    assert path in result.stderr
    assert why in result.stderr


def test_settings_come_from_the_environment_too(run):
    env = {"UDF_CONFIG_PLUGIN": run.path, "UDF_CONFIG_ENTRY_POINTS": "false"}
    result = run("functions", with_plugin=False, env=env)
    assert "geocode(" in result.stdout


def test_an_unknown_setting_in_the_environment_is_refused(run):
    result = run("functions", env={"UDF_CONFIG_PROT": "1"})
    assert "environment variable UDF_CONFIG_PROT: unknown setting" in result.stderr


def test_the_file_may_be_named_by_the_environment(run, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(f'plugin = ["{run.path}"]\nentry_points = false\n')
    assert "geocode(" in run("functions", with_plugin=False, env={"UDF_CONFIG_FILE": str(file)}).stdout
    assert "geocode(" in run("functions", "--config", str(file), with_plugin=False).stdout


@pytest.mark.parametrize(
    "command", [[], ["serve"], ["functions"], ["describe"], ["call"], ["check"], ["cache"], ["cache", "clear"]]
)
def test_every_command_explains_itself(command):
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith("Usage: ")


def test_serve_has_a_flag_for_every_setting():
    from udf_server.serving.config import settings

    text = CliRunner().invoke(main, ["serve", "--help"]).output
    assert [setting.name for setting in settings() if f"--{setting.name.replace('_', '-')}" not in text] == []


def test_the_version_is_shown():
    assert __version__ in CliRunner().invoke(main, ["--version"]).output


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_a_list_of_functions_that_fits(run, width):
    registry = Registry(load_functions(build_plugin_manager([run.path], entry_points=False)))
    shown = shown_of(registry)
    full, fitted = listed(shown).splitlines(), listed(shown, width).splitlines()
    assert max(map(len, full)) > width >= max(map(len, fitted))
    assert len(full) == len(fitted)
    names = [line.partition("(")[0] for line in full[1:]]
    assert all(line.startswith(name[:21]) for line, name in zip(fitted[1:], names, strict=True))
