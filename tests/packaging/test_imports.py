"""The structure of the code: no import cycles, and each layer imports only the layers below it."""

from pathlib import Path

import pytest

from tests.packaging.imports import circles, folder_graph, imported_names, imports_of, module_graph

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "spark_client"
SHARED = ROOT / "proto/remote_udf"
SERVER = ROOT / "udf_server"
PACKAGES = [CLIENT, SERVER, SHARED]


@pytest.fixture
def made(tmp_path):
    def write(**files: str) -> Path:
        root = tmp_path / "made"
        for name, text in {"__init__": "", **files}.items():
            path = root / f"{name.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(text)
        return root

    return write


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_no_module_imports_itself_by_others(package):
    assert circles(module_graph(package)) == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_no_folder_imports_itself_by_others(package):
    graph = dict(folder_graph(module_graph(package)))
    # The public surface of a package imports everything, and nothing below imports the surface.
    assert circles(graph) == []


LAYERS = {
    CLIENT: [
        "base", "executor", "functions", "windows", "planning", "summary", "sql", "parquet", "models", "", "shell",
    ],
    SERVER: [
        "base", "values", "declaring", "stores", "limits", "security", "hosting", "runners",
        "batching", "cache", "aggregate", "process", "plugins", "streams", "page", "http", "environments", "serving",
        "testing", "commands", "",
    ],
}  # fmt: skip
"""From the bottom up; "" is what stands beside the folders."""


ROOMS = ["text", "rows", "fewer_calls", "groups", "tables", ""]
"""The rooms of `spark_client/sql` from the bottom up."""


@pytest.mark.parametrize("package", LAYERS, ids=lambda path: path.name)
def test_layers_know_those_below_only(package):
    assert upward(folder_graph(module_graph(package)), package.name, LAYERS[package]) == []


def test_rooms_of_sql_know_those_below_only():
    folders = {name: found for name, found in folder_graph(module_graph(CLIENT)).items() if ".sql" in name}
    inside = {name: {other for other in found if ".sql" in other} for name, found in folders.items()}
    assert len(inside) == len(ROOMS)
    assert upward(inside, "spark_client.sql", ROOMS) == []


def upward(folders, root, floors):
    """The imports of a folder from one that is higher in `floors`, which are the folders directly below `root`."""
    place = {name: number for number, name in enumerate(floors)}

    def floor(folder: str) -> int:
        return place[folder.removeprefix(root).removeprefix(".").partition(".")[0]]

    return [(folder, other) for folder in folders for other in folders[folder] if floor(other) > floor(folder)]


IN_PROCESS = CLIENT / "executor/stream/in_process.py"
"""The module for `local:` and LocalTransport. It imports the server when they are used: clusters do not have it."""


@pytest.mark.parametrize(
    ("package", "others"),
    [(CLIENT, {"udf_server"}), (SERVER, {"spark_client"}), (SHARED, {"udf_server", "spark_client"})],
)
def test_each_package_knows_those_below_only(package, others):
    importing = {
        path
        for path in package.rglob("*.py")
        for name in imported_names(imports_of(path))
        if name.partition(".")[0] in others
    }
    assert importing == ({IN_PROCESS} if package == CLIENT else set())


def test_the_client_imports_the_server_only_when_it_is_used():
    first = imports_of(IN_PROCESS, at_once=True)
    assert [name for name in imported_names(first) if name.startswith("udf_server")] == []


SIDE_BUILDINGS = {"models", "parquet", "shell"}
"""Folders of the client that a plain job does without: they are imported by functions, when a user asks for them."""


def test_the_main_road_imports_no_side_building():
    graph = module_graph(CLIENT, at_once=True)
    folder = {module: module.partition(".")[2].partition(".")[0] for module in graph}
    road = [module for module in graph if folder[module] not in SIDE_BUILDINGS]
    found = [(module, other) for module in road for other in graph[module] if folder[other] in SIDE_BUILDINGS]
    assert found == []


def test_a_circle_is_seen_through_a_function_and_a_folder(made):
    root = made(
        one="from made.two import f", two="def g():\n    from made.one import h", low__in__a="import made.high.b",
        high__in__b="from made.low import c", low__in__c="",
    )  # fmt: skip
    modules = module_graph(root)
    assert circles(modules) == [["made.one", "made.two"]]
    assert circles(folder_graph(modules)) == [["made.high", "made.low"]]
