"""The shape of the code: no circles of imports, and each layer knows only the layers below it."""

from pathlib import Path

import pytest

from tests.packaging.imports import circles, folder_graph, module_graph

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "spark_client"
SHARED = ROOT / "proto/remote_udf"
PACKAGES = [CLIENT, SHARED]


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
    # What a package shows of itself imports everything, and nothing below imports it.
    assert circles(graph) == []


def test_layers_of_the_client_know_those_below_only():
    layers = ["base", "executor", "functions", "windows", "planning", "summary", "sql", "", "shell"]
    of = {name: number for number, name in enumerate(layers)}
    folders = folder_graph(module_graph(CLIENT))
    upward = []
    for folder, imported in folders.items():
        place = of[folder.partition(".")[2].partition(".")[0]]
        upward += [(folder, other) for other in imported if of[other.partition(".")[2].partition(".")[0]] > place]
    assert upward == []


def test_a_circle_is_seen_through_a_function_and_a_folder(made):
    root = made(
        one="from made.two import f", two="def g():\n    from made.one import h", low__in__a="import made.high.b",
        high__in__b="from made.low import c", low__in__c="",
    )  # fmt: skip
    modules = module_graph(root)
    assert circles(modules) == [["made.one", "made.two"]]
    assert circles(folder_graph(modules)) == [["made.high", "made.low"]]
