"""Sources: which files of a plugin count, when they count as edited, and that edited code is really imported."""

import os
import re
import sys
import textwrap
import time

import pytest

from udf_server.base.errors import PluginImportError
from udf_server.plugins.loading import build_plugin_manager, load_functions, report_of
from udf_server.plugins.sources import Sources

PLUGIN = """
import udf_server as udf

@udf.scalar
def f(x: int) -> int:
    return {value}
"""


NAMES = {"f", "helper", "other", "package", "plain"}
"""The modules of the plugins here."""


class Folder:
    """A folder with a plugin, which is loaded as a server of edited plugins does."""

    def __init__(self, path):
        self.path = path
        self.loaded = []

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def load(self, plugin="f.py"):
        sources = Sources(watched=True)
        self.loaded.append(sources)
        name = str(self.path / plugin) if plugin.endswith(".py") else plugin
        manager = build_plugin_manager([name], entry_points=False, sources=sources)
        (self.function,) = [function for _, function in load_functions(manager)]
        return sources

    def call(self):
        return self.function.call(1)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in [each for each in sys.modules if each.partition(".")[0] in NAMES]:
        monkeypatch.delitem(sys.modules, name)
    made = Folder(tmp_path)
    yield made
    for sources in made.loaded:
        sources.forget()
    # A folder without a file is nothing that is edited.
    for name in [each for each in sys.modules if each == "plain"]:
        del sys.modules[name]
    assert [each for each in sys.modules if each.partition(".")[0] in NAMES] == []


def test_a_plugin_counts_as_edited_once_its_content_is_another(folder):
    path = folder.write("f.py", PLUGIN.format(value=1))
    sources = folder.load()
    assert not sources.edited()
    os.utime(path, (1, 1))
    assert not sources.edited()
    folder.write("f.py", PLUGIN.format(value=2))
    assert sources.edited()
    folder.write("f.py", PLUGIN.format(value=1))
    assert not sources.edited()
    path.unlink()
    assert sources.edited()


IMPORTS = {
    "at the top": ("import helper", "helper.K", "helper.py"),
    "from": ("from helper import K", "K", "helper.py"),
    "several lines": ("from package import (\n    helper as h,\n)", "h.K", "package/helper.py"),
    "dotted": ("import package.helper", "package.helper.K", "package/helper.py"),
    "the package": ("import package.helper", "package.helper.K", "package/__init__.py"),
    "by another": ("import other", "other.helper.K", "helper.py"),
    "relative": ("import package.outer", "package.outer.K", "package/inner.py"),
    "by name": ("import importlib\nhelper = importlib.import_module('helper')", "helper.K", "helper.py"),
    "no package": ("import plain.helper", "plain.helper.K", "plain/helper.py"),
}


@pytest.mark.parametrize("how", IMPORTS)
@pytest.mark.parametrize("within", [False, True], ids=["at once", "when called"])
def test_what_a_plugin_imports_from_its_folder_counts_and_is_imported_again(folder, how, within):
    statement, value, edited = IMPORTS[how]
    for name in ("helper.py", "package/helper.py", "package/inner.py", "plain/helper.py"):
        folder.write(name, "K = 10\n")
    folder.write("package/__init__.py", "")
    folder.write("package/outer.py", "from .inner import K\n")
    folder.write("other.py", "import helper\n")
    body = f"{statement}\nresult = {value}"
    text = PLUGIN.format(value="result + x")
    if within:
        text = text.replace("    return", textwrap.indent(f"{body}\n", "    ") + "    return")
    else:
        text = f"{body}\n{text}"
    folder.write("f.py", text)
    first = folder.load()
    assert folder.call() == 11
    assert not first.edited()
    # Neither the size nor, for Python's bytecode, the time of the file tells of the edit.
    folder.write(edited, "K = 20\n" if edited.endswith(("helper.py", "inner.py")) else "K = 1\n")
    assert first.edited()
    first.forget()
    again = folder.load()
    assert folder.call() == (11 if how == "the package" else 21)
    assert not again.edited()
    assert again.identity != first.identity


def test_bytecode_that_another_program_wrote_just_after_an_older_content_is_not_used(folder, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # an environment variable may have set it
    helper = folder.write("helper.py", "K = 10\n")
    folder.write("f.py", f"from helper import K\n{PLUGIN.format(value='K')}")
    minute_ago = time.time_ns() // 10**9 * 10**9 - 60 * 10**9
    os.utime(helper, ns=(minute_ago, minute_ago))
    sys.path.insert(0, str(folder.path))
    __import__("helper")  # writes bytecode
    bytecode = sys.modules.pop("helper").__cached__
    os.utime(bytecode, ns=(minute_ago + 10**8, minute_ago + 10**8))
    folder.write("helper.py", "K = 20\n")
    os.utime(helper, ns=(minute_ago + 2 * 10**8, minute_ago + 2 * 10**8))
    folder.load()
    assert folder.call() == 20


def test_a_package_counts_and_what_is_beside_it_does_not(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder.path)
    folder.write("package/__init__.py", "from package.functions import f\n")
    folder.write("package/functions.py", PLUGIN.format(value=1))
    beside = folder.write("helper.py", "K = 1\n")
    sources = folder.load("package")
    beside.write_text("K = 2\n")
    assert not sources.edited()
    folder.write("package/functions.py", PLUGIN.format(value=2))
    assert sources.edited()
    sources.forget()
    folder.load("package")
    assert folder.call() == 2


def test_what_is_installed_does_not_count_even_in_an_environment_within_the_folder(folder, monkeypatch):
    library = folder.write(".venv/lib/site-packages/a_library.py", "K = 1\n")
    monkeypatch.syspath_prepend(library.parent)
    folder.write("f.py", f"import a_library\n{PLUGIN.format(value='a_library.K')}")
    sources = folder.load()
    library.write_text("K = 2\n")
    assert not sources.edited()
    del sys.modules["a_library"]
    installed = folder.write(".venv/lib/site-packages/an_installed_plugin.py", PLUGIN.format(value=1))
    assert folder.load("an_installed_plugin").identity == ""
    del sys.modules[installed.stem]


def test_modules_beside_a_plugin_precede_installed_ones_and_follow_those_of_python(folder):
    library = folder.write("site-packages/helper.py", "K = 'installed'\n")
    sys.path.append(str(library.parent))
    folder.write("helper.py", "K = 'beside'\n")
    folder.write("wsgiref.py", "K = 'no part of Python'\n")
    text = "import helper, wsgiref\nresult = (helper.K, hasattr(wsgiref, 'K'))\n" + PLUGIN.format(value="result")
    folder.write("f.py", text)
    sys.modules.pop("wsgiref", None)
    folder.load()
    assert folder.call() == ("beside", False)


def test_the_identity_is_that_of_the_code_wherever_it_is(folder, tmp_path_factory):
    elsewhere = Folder(tmp_path_factory.mktemp("elsewhere"))
    for each in (folder, elsewhere):
        each.write("helper.py", "K = 1\n")
        each.write("f.py", f"from helper import K\n{PLUGIN.format(value='K')}")
    here = folder.load()
    here.forget()
    there = elsewhere.load()
    assert here.identity == there.identity != ""
    there.forget()


def test_a_file_that_is_first_imported_after_its_edit_counts_as_edited(folder):
    folder.write("helper.py", "K = 1\n")
    folder.write("f.py", PLUGIN.format(value="__import__('helper').K").replace("return", "import helper\n    return"))
    sources = folder.load()
    before = sources.identity
    folder.write("helper.py", "K = 2\n")
    assert folder.call() == 2
    assert sources.edited()
    assert sources.identity == before


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ("def f(:\n", r"SyntaxError: invalid syntax \(helper.py, line 1\)(.|\n)*File .*f.py.*line 1(.|\n)*def f\(:"),
        ("1 / 0\n", r"ZeroDivisionError(.|\n)*line 1, in <module>\n    from helper import K\n(.|\n)*1 / 0"),
        (None, r"No module named 'helper'(.|\n)*from helper import K"),
    ],
)
def test_what_does_not_import_has_a_report_and_imports_once_it_is_repaired(folder, broken, expected):
    folder.write("f.py", f"from helper import K\n{PLUGIN.format(value='K')}")
    if broken is not None:
        folder.write("helper.py", broken)
    with pytest.raises(PluginImportError) as caught:
        folder.load()
    report = report_of(caught.value)
    assert report.startswith(f"plugin '{folder.path}/f.py' cannot be imported: ")
    assert re.search(expected, report)
    assert "importlib" not in report.partition("<module>")[0]
    folder.loaded[-1].forget()
    folder.write("helper.py", "K = 3\n")
    folder.load()
    assert folder.call() == 3
