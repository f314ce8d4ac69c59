"""The import graph, read from the code."""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["circles", "folder_graph", "imported_names", "imports_of", "module_graph"]

Graph = Mapping[str, set[str]]


def module_graph(package: Path, *, at_once: bool = False) -> Graph:
    """Returns, for each module of the package, the modules of it that it imports; a folder is its `__init__`.

    With `at_once` imports within functions, and those for type checkers only, do not count.
    """
    paths = {_name(package, path): path for path in sorted(package.rglob("*.py"))}
    return {name: set(_imported(name, path, paths, at_once=at_once)) - {name} for name, path in paths.items()}


def folder_graph(modules: Graph) -> Graph:
    """Returns, for each folder, the folders that its files import; the files at the root of a package are a folder."""
    holding = {module for module in modules if any(other.startswith(f"{module}.") for other in modules)}

    def folder(module: str) -> str:
        return module if module in holding else module.rpartition(".")[0]

    graph: dict[str, set[str]] = {}
    for module, imported in modules.items():
        graph.setdefault(folder(module), set()).update(folder(other) for other in imported)
    return {name: imported - {name} for name, imported in graph.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Returns groups of nodes each of which reaches every other one (Tarjan), sorted; none if there is no cycle."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == number[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return sorted(found)


Imports = tuple[ast.Import | ast.ImportFrom, ...]


@functools.cache
def imports_of(path: Path, *, at_once: bool = False) -> Imports:
    """The statements of a file that import, with `at_once` those at its top only. Each file is read once."""
    tree = ast.parse(path.read_text())
    return tuple(
        node for node in (tree.body if at_once else ast.walk(tree)) if isinstance(node, (ast.Import, ast.ImportFrom))
    )


def imported_names(nodes: Imports) -> Iterator[str]:
    """The modules that these statements import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def _name(package: Path, path: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, path: Path, known: Mapping[str, Path], *, at_once: bool) -> Iterator[str]:
    for node in imports_of(path, at_once=at_once):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in known)
        else:
            assert not node.level, f"{name} imports relatively, which this reading does not know"
            for each in node.names:
                member = f"{node.module}.{each.name}"
                if member in known:
                    yield member
                elif node.module in known:
                    yield node.module
