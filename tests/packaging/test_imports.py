"""The structure of the code: no import cycles, and each layer imports only the layers below it."""

from pathlib import Path

import pytest

from tests.packaging.imports import circles, folder_graph, module_graph

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
        "base", "executor", "functions", "windows", "planning", "summary", "models", "parquet", "sql", "", "shell",
    ],
    SERVER: [
        "base", "scalar", "stores", "limits", "security", "hosting", "runners",
        "batching", "cache", "aggregate", "process", "plugins", "streams", "page", "http", "serving", "testing",
        "commands", "",
    ],
}  # fmt: skip
"""From the bottom up; "" is what stands beside the folders."""


@pytest.mark.parametrize("package", LAYERS, ids=lambda path: path.name)
def test_layers_know_those_below_only(package):
    place = {name: number for number, name in enumerate(LAYERS[package])}
    folders = folder_graph(module_graph(package))

    def layer(folder: str) -> int:
        return place[folder.partition(".")[2].partition(".")[0]]

    upward = [(folder, other) for folder in folders for other in folders[folder] if layer(other) > layer(folder)]
    assert upward == []


def test_a_circle_is_seen_through_a_function_and_a_folder(made):
    root = made(
        one="from made.two import f", two="def g():\n    from made.one import h", low__in__a="import made.high.b",
        high__in__b="from made.low import c", low__in__c="",
    )  # fmt: skip
    modules = module_graph(root)
    assert circles(modules) == [["made.one", "made.two"]]
    assert circles(folder_graph(modules)) == [["made.high", "made.low"]]
