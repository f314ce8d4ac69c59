"""The tables `[groups.NAME]` of the settings file, and what the processes of a group load."""

import dataclasses
import sys

import pytest

from udf_server.base.errors import FunctionClash, InvalidConfig
from udf_server.declaring.declaration import scalar
from udf_server.limits.settings import GuardSettings
from udf_server.serving.config import ServerConfig, load_config
from udf_server.serving.groups import GroupSettings, parse_groups
from udf_server.serving.membership import check_whole, config_of_group
from udf_server.streams.routes import GroupFunction


def test_a_group_has_plugins_and_defaults(toml, tmp_path):
    config = load_config(toml('[groups.geo]\nplugins = ["shapes.py", "geo"]\n'))
    assert config.groups == {"geo": GroupSettings(plugins=("shapes.py", "geo"))}
    assert (config.groups["geo"].processes, config.groups["geo"].required) == (1, True)
    assert config.groups_lock == str(tmp_path / "groups.lock")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("[groups.geo]", r"setting groups.geo: plugins: there are none"),
        ('[groups.geo]\nplugins = ["a"]\nproceses = 2', r"setting groups.geo: unknown key 'proceses', did you mean"),
        ('[groups.geo]\nplugins = ["a"]\nprocesses = 0', r"setting groups.geo: processes: 0 is less than 1"),
        ('[groups.geo]\nplugins = ["a"]\nprocesses = "many"', r"setting groups.geo: processes: 'many' is not valid"),
        ('[groups.geo]\nplugins = ["a"]\ndevices = ["gpu"]', r"groups.geo: 'devices': 'gpu' is not a device"),
        ('[groups.geo]\nplugins = ["a"]\nprocesses = 3\ndevices = ["0", "1"]', r"groups.geo: 'processes': 3, but each"),
        ('[groups.geo]\nplugins = ["a"]\nmemory = "much"', r"setting groups.geo: memory: 'much' is not a size"),
        ('[groups.geo]\nplugins = ["a"]\nrequired = "perhaps"', r"setting groups.geo: required: 'perhaps' is not"),
        ('[groups.geo]\nplugins = ["a"]\npython = "/no/such"', r"groups.geo: python: '/no/such' is neither the path"),
        ('[groups.geo]\nplugins = ["a"]\npython = "three"', r"groups.geo: python: 'three' is neither the path"),
        ('[groups.geo]\nplugins = ["a"]\nenvironment = { A = 1 }', r"environment: the value of 'A' is not a text"),
        ('[groups.geo]\nplugins = ["a"]\nenvironment = { A = "$" }', r"environment: the value of 'A' begins with \$"),
        ('[groups.geo]\nplugins = ["a"]\nenvironment = { "A B" = "x" }', r"environment: 'A B' is not the name"),
        ('[groups.geo]\nplugins = ["a"]\nenvironment = { UDF_CONFIG_PORT = "1" }', r"'UDF_CONFIG_PORT' is not"),
        ('[groups.Geo]\nplugins = ["a"]', r"setting groups.Geo: not a name of a group"),
        ('[groups.default]\nplugins = ["a"]', r"setting groups.default: not a name of a group"),
        ("[groups]\ngeo = 1", r"setting groups.geo: 1 is not a table; expected one with plugins, python"),
        ('[groups.a]\nplugins = ["x"]\n[groups.b]\nplugins = ["x"]', r"groups.b: plugins: 'x' is in group 'a' too"),
    ],
)  # fmt: skip
def test_an_error_names_the_table_and_the_key(toml, table, told):
    with pytest.raises(InvalidConfig, match=told):
        load_config(toml(table + "\n"))


def test_a_device_of_a_group_has_a_process(toml):
    group = load_config(toml('[groups.geo]\nplugins = ["geo"]\ndevices = ["0", "cuda:1"]\n')).groups["geo"]
    assert (group.devices, group.processes) == (("cuda:0", "cuda:1"), 2)


@pytest.mark.parametrize(
    ("plugins", "python", "packages"),
    [
        (("geo", "acme.geo"), None, None), (("geo==2.1", "shapely"), None, ("geo==2.1", "shapely")),
        (("udf-models",), None, ("udf-models",)), (("geo",), "3.12", ("geo",)), (("geo-udfs",), sys.executable, None),
    ],
)  # fmt: skip
def test_what_is_no_module_is_a_package_unless_an_interpreter_has_it(plugins, python, packages):
    asked = GroupSettings(plugins=plugins, python=python).asked("geo")
    assert (None if asked is None else asked.packages) == packages
    inside = config_of_group(ServerConfig(groups={"geo": GroupSettings(plugins=plugins, python=python)}), "geo")
    assert (inside.plugin, inside.entry_points) == (((), True) if packages else (plugins, False))


def test_variables_of_a_group_are_those_of_the_server_and_its_own():
    group = GroupSettings(plugins=("a",), environment={"A": "1", "KEY": "$GEO_KEY", "PRICE": "$$5"})
    own = {"A": "0", "B": "2", "GEO_KEY": "secret"}
    assert group.variables("geo", own) == {**own, "A": "1", "KEY": "secret", "PRICE": "$5"}
    with pytest.raises(
        InvalidConfig, match=r"groups.geo: environment: KEY is \$GEO_KEY, but the server has no variable"
    ):
        group.variables("geo", {"A": "0"})


def test_a_group_gets_the_variables_that_it_inherits_and_those_that_programs_need():
    table = {"plugins": ["a"], "inherit": ["KEY", "NOT_SET"], "environment": {"OTHER": "$SECRET"}}
    group = parse_groups({"geo": table})["geo"]
    always = ["PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "UDF_CONFIG_CACHE_URL", "CUDA_VISIBLE_DEVICES"]
    own = dict.fromkeys([*always, "KEY", "SEAL", "SECRET", "KEY_2", "MYPATH"], "x")
    assert group.variables("geo", own, ["SEAL", None]).keys() == {*always, "KEY", "SEAL", "OTHER"}
    assert parse_groups({"geo": {**table, "inherit": []}})["geo"].variables("geo", own).keys() == {*always, "OTHER"}


@pytest.mark.parametrize(("value", "read"), [("always", "always"), (True, True), ("false", False)])
def test_a_group_is_required_at_the_start_always_or_not(value, read):
    assert parse_groups({"geo": {"plugins": ["a"], "required": value}})["geo"].required == read


def test_values_of_variables_are_in_no_repr():
    group = GroupSettings(plugins=("a",), environment={"KEY": "secret"})
    assert "secret" not in repr(ServerConfig(groups={"geo": group}))


def test_the_default_group_loads_what_no_other_group_has(installed_plugins, tmp_path):
    installed_plugins("geo", "models")
    (shapes := tmp_path / "shapes.py").touch()
    group = GroupSettings(plugins=("geo", str(shapes)))
    config = ServerConfig(plugin=("mine.py",), block=("models",), groups={"geo": group}, devices=("cuda:0",))
    default = config_of_group(config, "default")
    assert (default.plugin, default.block, default.devices) == (("mine.py",), ("models", "geo"), ("cuda:0",))
    # Named plugins are the only ones, unless entry_points is set.
    for entry_points, found in ((None, False), (True, True), (False, False)):
        assert config_of_group(dataclasses.replace(config, entry_points=entry_points), "default").entry_points is found
    assert config_of_group(ServerConfig(), "default").entry_points is None
    geo = config_of_group(config, "geo")
    assert (geo.plugin, geo.block, geo.entry_points, geo.devices) == (("geo", str(shapes)), (), False, ())
    with pytest.raises(InvalidConfig, match="unknown group 'goe', did you mean 'geo'"):
        config_of_group(config, "goe")


@pytest.fixture
def installed_plugins(monkeypatch):
    """Makes it seem that packages with entry points of these names are installed."""
    from importlib import metadata

    def install(*names):
        points = metadata.EntryPoints(metadata.EntryPoint(name, "json", "udf_server") for name in names)
        monkeypatch.setattr(metadata, "entry_points", lambda group: points)

    return install


@scalar
def area(x: int) -> int:
    return x


def test_settings_are_checked_over_the_functions_of_all_groups(caplog):
    elsewhere = [GroupFunction(area.spec, "geo")]
    check_whole(ServerConfig(weights={"area@1": 1.0}), [], elsewhere, lacking=[])
    with pytest.raises(InvalidConfig, match=r'weights."aera@1": there is no such function \(known: area\)'):
        check_whole(ServerConfig(weights={"aera@1": 1.0}), [], elsewhere, lacking=[])
    assert not caplog.records
    check_whole(ServerConfig(functions={"aera": {"timeout": "1s"}}), [], elsewhere, lacking=[])
    lost = ServerConfig(
        functions={"lost": {"timeout": "1s"}, "area": {}}, weights={"lost@1": 0.5, "area@2": 0.5, "area@1": 1.0},
        guards={"lost": GuardSettings.parse("lost", {"rate": "5/second"})},
    )  # fmt: skip
    check_whole(lost, [], elsewhere, lacking=["group 'models'"])
    assert {line.message for line in caplog.records} == {"a setting has no effect: there is no such function"}
    assert [(line.setting, getattr(line, "missing_groups", None)) for line in caplog.records] == [
        ("functions.aera", None),
        *((name, ["group 'models'"]) for name in ("functions.lost", "guards.lost", "weights.lost@1", "weights.area@2")),
    ]
    with pytest.raises(InvalidConfig, match=r"setting guards\.lost: there is no such function"):
        check_whole(dataclasses.replace(lost, weights={}), [], elsewhere, lacking=[])
    with pytest.raises(FunctionClash, match="'area@1' is in group 'default' and in group 'geo'"):
        check_whole(ServerConfig(), [area.spec], elsewhere, lacking=[])
